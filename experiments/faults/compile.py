"""A scenario's faults as a timeline.

Steps of a scenario wait for what they ask for, so when they come is known only from a run. The scenario is run on the
simulator, and what it does to nodes and links is taken down with its times: a crash lasts until the node is started, a
pause until it is resumed, a cut direction until it is healed, and what is never healed until the scenario is over.
Administration steps are no faults and are left out.
"""

from __future__ import annotations

from collections.abc import Callable

from experiments.engine import ClusterSpec, Loss
from experiments.errors import InputError
from experiments.faults.schema import Crash, Cut, Fault, Pause, Restart
from experiments.scenarios.model import Scenario
from experiments.scenarios.runner import Runner
from experiments.sim.engine import SimEngine
from protocol.config import ClusterConfig, Generation
from protocol.ids import NodeId

_LOSES = {"none": "nothing", "unflushed": "unflushed", "all": "all"}
_Key = tuple[str, NodeId, NodeId]


def timeline_of(scenario: Scenario, seed: int = 0) -> tuple[Fault, ...]:
    """The faults of a scenario in the order of their beginnings. InputError where a crash loses a number of records,
    which no fault of a timeline does, or where a step fails.
    """
    cluster = scenario.cluster
    config = ClusterConfig.of(Generation(cluster.generation), cluster.config)
    engine = _Recorder(ClusterSpec(cluster.brokers, cluster.controllers, config, seed), scenario.name)
    result = Runner(scenario, engine).run()
    failed = [step for step in result.steps if not step.ok]
    if failed:
        raise InputError(scenario.name, f"steps[{failed[0].index}]", failed[0].detail, "steps that hold")
    return engine.faults()


class _Recorder(SimEngine):
    """Takes down what is done to nodes and links; a fault that has begun waits in `_open` for its end."""

    def __init__(self, spec: ClusterSpec, name: str) -> None:
        super().__init__(spec)
        self._scenario = name
        self._open: dict[_Key, Callable[[int], Fault]] = {}
        self._over: list[Fault] = []

    def faults(self) -> tuple[Fault, ...]:
        """All faults; those that nothing has healed end with this call."""
        for key in sorted(self._open):
            self._end(key)
        return tuple(sorted(self._over, key=lambda fault: (fault.at_ms, fault.kind, fault.nodes)))

    def _begin(self, key: _Key, make: Callable[[int], Fault]) -> None:
        self._open.setdefault(key, make)

    def _end(self, key: _Key) -> None:
        make = self._open.pop(key, None)
        if make is not None:
            self._over.append(make(self.now_ms()))

    def crash(self, node: NodeId, loss: Loss) -> None:
        if loss.kind not in _LOSES:
            raise InputError(self._scenario, "crash.lose", loss.count, "none, unflushed or all")
        at_ms, loses = self.now_ms(), _LOSES[loss.kind]
        raw = {"at_ms": at_ms, "node": node, "loses": loses}
        self._end(("still", node, node))
        self._begin(("down", node, node), lambda end: Crash.model_validate(raw | _lasting(at_ms, end)))
        super().crash(node, loss)

    def terminate(self, node: NodeId) -> None:
        at_ms = self.now_ms()
        self._begin(("down", node, node), lambda end: Restart(node=node, at_ms=at_ms, **_lasting(at_ms, end)))
        super().terminate(node)

    def start(self, node: NodeId) -> None:
        self._end(("down", node, node))
        super().start(node)

    def pause(self, node: NodeId) -> None:
        at_ms = self.now_ms()
        self._begin(("still", node, node), lambda end: Pause(node=node, at_ms=at_ms, **_lasting(at_ms, end)))
        super().pause(node)

    def resume(self, node: NodeId) -> None:
        self._end(("still", node, node))
        super().resume(node)

    def set_link(self, source: NodeId, target: NodeId, up: bool) -> None:
        key, at_ms = ("cut", source, target), self.now_ms()
        if up:
            self._end(key)
        else:
            self._begin(
                key,
                lambda end: Cut(source=(source,), target=(target,), one_way=True, at_ms=at_ms, **_lasting(at_ms, end)),
            )
        super().set_link(source, target, up)

    def heal_links(self) -> None:
        for key in sorted(self._open):
            if key[0] == "cut":
                self._end(key)
        super().heal_links()


def _lasting(at_ms: int, end_ms: int) -> dict[str, int]:
    """The duration of a fault, at least a millisecond."""
    return {"duration_ms": max(1, end_ms - at_ms)}
