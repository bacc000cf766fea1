"""The faults of a scenario as a timeline.

The steps of a scenario wait for their effects, so their times are known from a run only. `timeline_of` runs the
scenario on the simulator and records what it does to nodes, links, assignments, configs and votes, with the times: a
crash or a shutdown lasts until the node is started, a pause until it is resumed, a cut until it is healed, a
reassignment until it is cancelled or replaced, a topic's config until it is set again, the loss of a vote until the
controller is added again; whatever is not healed lasts until the end of the scenario. All other administration, and
requests that are expected to be refused, are no faults and are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from experiments.check.engine import CheckedEngine
from experiments.engines.port import ClusterSpec, Loss
from experiments.faults.kinds.administration import Configure, Reassign, VoterChange
from experiments.faults.kinds.links import Cut
from experiments.faults.kinds.processes import Crash, Pause, Restart
from experiments.faults.schema import Fault
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
        raise InputError(scenario.name, f"steps[{failed[0].index}]", failed[0].detail, "steps that succeed")
    return engine.faults()


class _Runner(Runner):
    """Records administration that is a fault, once it has succeeded."""

    engine: _Recorder

    def _reassign(self, fields: ReassignStep) -> None:
        at_ms = self.engine.now_ms()
        super()._reassign(fields)
        if fields.expect_error is None:
            self.engine.record_reassignment(fields, at_ms)

    def _configure(self, fields: ConfigureStep) -> None:
        at_ms = self.engine.now_ms()
        super()._configure(fields)
        self.engine.record_configs(fields, at_ms)

    def _remove_voter(self, fields: VoterStep) -> None:
        at_ms = self.engine.now_ms()
        super()._remove_voter(fields)
        if fields.expect_error is None:
            self.engine.record_vote_removed(fields.controller, at_ms)

    def _add_voter(self, fields: VoterStep) -> None:
        super()._add_voter(fields)
        if fields.expect_error is None:
            self.engine.record_vote_added(fields.controller)


class _Recorder(CheckedEngine):
    """Records what is done to nodes and links. `_open` holds the faults that have begun and not ended."""

    def __init__(self, spec: ClusterSpec) -> None:
        super().__init__(spec)
        self._open: dict[_Key, Callable[[int], Fault]] = {}
        self._ended: list[Fault] = []

    def faults(self) -> tuple[Fault, ...]:
        """All faults; those that nothing has healed end with this call."""
        for key in list(self._open):
            self._end(key)
        return tuple(sorted(self._ended, key=lambda fault: (fault.at_ms, fault.kind, fault.nodes)))

    def _begin(self, key: _Key, make: Callable[[int], Fault], at_ms: TimeMs | None = None) -> None:
        """A fault has begun, by default now; `make` builds it from its duration."""
        began_ms = self.now_ms() if at_ms is None else at_ms
        self._open.setdefault(key, lambda end_ms: make(max(1, end_ms - began_ms)))

    def _end(self, key: _Key, at_ms: TimeMs | None = None) -> None:
        make = self._open.pop(key, None)
        if make is not None:
            self._ended.append(make(self.now_ms() if at_ms is None else at_ms))

    def record_reassignment(self, step: ReassignStep, at_ms: TimeMs) -> None:
        """A partition has begun to move at that time, or its move was cancelled."""
        key, replicas = ("moved", step.topic, step.partition), step.replicas
        self._end(key, at_ms)
        if replicas is not None:
            place = {"topic": step.topic, "partition": step.partition, "replicas": tuple(replicas), "at_ms": at_ms}
            self._begin(key, lambda lasts_ms: Reassign.model_validate(place | {"duration_ms": lasts_ms}), at_ms)

    def record_configs(self, step: ConfigureStep, at_ms: TimeMs) -> None:
        """Configs of a topic were set. Those of the whole cluster are no fault."""
        for name, value in step.config.items() if step.topic is not None else ():
            self._end(("configured", step.topic, name), at_ms)
            raw = {"topic": step.topic, "config": {name: value}, "at_ms": at_ms}
            self._begin(("configured", step.topic, name), partial(_configuring, raw), at_ms)

    def record_vote_removed(self, node: NodeId, at_ms: TimeMs) -> None:
        make = partial(VoterChange, node=node, at_ms=at_ms)
        self._begin(("voteless", node), lambda lasts_ms: make(duration_ms=lasts_ms), at_ms)

    def record_vote_added(self, node: NodeId) -> None:
        self._end(("voteless", node))

    def crash(self, node: NodeId, loss: Loss) -> None:
        raw = {"at_ms": self.now_ms(), "node": node, "loses": _LOSES[loss.kind], "count": loss.count}
        self._end(("paused", node))
        self._begin(("down", node), lambda lasts_ms: Crash.model_validate(raw | {"duration_ms": lasts_ms}))
        super().crash(node, loss)

    def terminate(self, node: NodeId) -> None:
        make = partial(Restart, node=node, at_ms=self.now_ms())
        self._begin(("down", node), lambda lasts_ms: make(duration_ms=lasts_ms))
        super().terminate(node)

    def start(self, node: NodeId) -> None:
        self._end(("down", node))
        super().start(node)

    def pause(self, node: NodeId) -> None:
        make = partial(Pause, node=node, at_ms=self.now_ms())
        self._begin(("paused", node), lambda lasts_ms: make(duration_ms=lasts_ms))
        super().pause(node)

    def resume(self, node: NodeId) -> None:
        self._end(("paused", node))
        super().resume(node)

    def set_link(self, source: NodeId, target: NodeId, up: bool) -> None:
        key = ("cut", source, target)
        if up:
            self._end(key)
        else:
            make = partial(Cut, source=(source,), target=(target,), one_way=True, at_ms=self.now_ms())
            self._begin(key, lambda lasts_ms: make(duration_ms=lasts_ms))
        super().set_link(source, target, up)

    def heal_links(self) -> None:
        for key in list(self._open):
            if key[0] == "cut":
                self._end(key)
        super().heal_links()


def _configuring(raw: Mapping[str, object], lasts_ms: int) -> Fault:
    return Configure.model_validate({**raw, "duration_ms": lasts_ms})
