"""A scenario's faults as a timeline.

Steps of a scenario wait for what they ask for, so when they come is known only from a run. The scenario is run on the
simulator, and what it does to nodes, links, assignments and configs is taken down with its times: a crash or a shutdown
lasts until the node is started, a pause until it is resumed, a cut direction until it is healed, a reassignment until
it is cancelled or another takes its place, a topic's config until it is set anew, a vote is gone until it is given
back; and what is never healed until the scenario is over. All other administration, and what is expected to be refused,
is no fault and is left out.
"""

from __future__ import annotations

from collections.abc import Callable

from experiments.check.engine import CheckedEngine
from experiments.engines.port import ClusterSpec, Loss
from experiments.faults.schema import Configure, Crash, Cut, Fault, Pause, Reassign, Restart, VoterChange
from experiments.scenarios.model import ConfigureStep, ReassignStep, Scenario, VoterStep
from experiments.scenarios.runner import Runner
from experiments.support.errors import InputError
from protocol.config import ClusterConfig, Generation
from protocol.ids import NodeId, TimeMs

_LOSES = {"none": "nothing", "records": "records", "unflushed": "unflushed", "all": "all"}
_Key = tuple[object, ...]


def timeline_of(scenario: Scenario, seed: int = 0) -> tuple[Fault, ...]:
    """The faults of a scenario in the order of their beginnings. InputError where a step fails."""
    cluster = scenario.cluster
    config = ClusterConfig.of(Generation(cluster.generation), cluster.config)
    voters = None if cluster.voters is None else tuple(cluster.voters)
    engine = _Recorder(ClusterSpec(cluster.brokers, cluster.controllers, config, seed, voters))
    result = _Runner(scenario, engine).run()
    failed = [step for step in result.steps if not step.ok]
    if failed:
        raise InputError(scenario.name, f"steps[{failed[0].index}]", failed[0].detail, "steps that hold")
    return engine.faults()


class _Runner(Runner):
    """Has administration that is a fault taken down, once it is done."""

    engine: _Recorder

    def _reassign(self, fields: ReassignStep) -> None:
        at_ms = self.engine.now_ms()
        super()._reassign(fields)
        if fields.expect_error is None:
            self.engine.note_reassign(fields, at_ms)

    def _configure(self, fields: ConfigureStep) -> None:
        at_ms = self.engine.now_ms()
        super()._configure(fields)
        self.engine.note_configure(fields, at_ms)

    def _remove_voter(self, fields: VoterStep) -> None:
        at_ms = self.engine.now_ms()
        super()._remove_voter(fields)
        if fields.expect_error is None:
            self.engine.note_vote_ended(fields.controller, at_ms)

    def _add_voter(self, fields: VoterStep) -> None:
        super()._add_voter(fields)
        if fields.expect_error is None:
            self.engine.note_vote_given(fields.controller)


class _Recorder(CheckedEngine):
    """Takes down what is done to nodes and links; a fault that has begun waits in `_open` for its end."""

    def __init__(self, spec: ClusterSpec) -> None:
        super().__init__(spec)
        self._open: dict[_Key, Callable[[TimeMs], Fault]] = {}
        self._over: list[Fault] = []

    def faults(self) -> tuple[Fault, ...]:
        """All faults; those that nothing has healed end with this call."""
        for key in list(self._open):
            self._end(key)
        return tuple(sorted(self._over, key=lambda fault: (fault.at_ms, fault.kind, fault.nodes)))

    def _begin(self, key: _Key, make: Callable[[TimeMs], Fault]) -> None:
        self._open.setdefault(key, make)

    def _end(self, key: _Key, at_ms: TimeMs | None = None) -> None:
        make = self._open.pop(key, None)
        if make is not None:
            self._over.append(make(self.now_ms() if at_ms is None else at_ms))

    def note_reassign(self, step: ReassignStep, at_ms: TimeMs) -> None:
        """A partition has begun to move at that time, or a move was taken back."""
        key = ("moved", step.topic, step.partition)
        self._end(key, at_ms)
        if step.replicas is not None:
            place = {"topic": step.topic, "partition": step.partition, "replicas": step.replicas, "at_ms": at_ms}
            self._begin(key, lambda end: Reassign.model_validate(place | _lasting(at_ms, end)))

    def note_configure(self, step: ConfigureStep, at_ms: TimeMs) -> None:
        """Configs were set; those of the whole cluster are no fault."""
        for name, value in step.config.items() if step.topic is not None else ():
            self._end(("configured", step.topic, name), at_ms)
            raw = {"topic": step.topic, "config": {name: value}, "at_ms": at_ms}
            self._begin(("configured", step.topic, name), _configuring(raw, at_ms))

    def note_vote_ended(self, node: NodeId, at_ms: TimeMs) -> None:
        """A controller has no vote from that time on."""
        self._begin(("voteless", node), lambda end: VoterChange(node=node, at_ms=at_ms, **_lasting(at_ms, end)))

    def note_vote_given(self, node: NodeId) -> None:
        """It has one again."""
        self._end(("voteless", node))

    def crash(self, node: NodeId, loss: Loss) -> None:
        at_ms = self.now_ms()
        raw = {"at_ms": at_ms, "node": node, "loses": _LOSES[loss.kind], "count": loss.count}
        self._end(("still", node))
        self._begin(("down", node), lambda end: Crash.model_validate(raw | _lasting(at_ms, end)))
        super().crash(node, loss)

    def terminate(self, node: NodeId) -> None:
        at_ms = self.now_ms()
        self._begin(("down", node), lambda end: Restart(node=node, at_ms=at_ms, **_lasting(at_ms, end)))
        super().terminate(node)

    def start(self, node: NodeId) -> None:
        self._end(("down", node))
        super().start(node)

    def pause(self, node: NodeId) -> None:
        at_ms = self.now_ms()
        self._begin(("still", node), lambda end: Pause(node=node, at_ms=at_ms, **_lasting(at_ms, end)))
        super().pause(node)

    def resume(self, node: NodeId) -> None:
        self._end(("still", node))
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
        for key in list(self._open):
            if key[0] == "cut":
                self._end(key)
        super().heal_links()


def _configuring(raw: dict[str, object], at_ms: TimeMs) -> Callable[[TimeMs], Fault]:
    return lambda end: Configure.model_validate(raw | _lasting(at_ms, end))


def _lasting(at_ms: int, end_ms: int) -> dict[str, int]:
    """The duration of a fault, at least a millisecond."""
    return {"duration_ms": max(1, end_ms - at_ms)}
