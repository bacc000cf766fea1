"""The faults of a scenario as a timeline.

The steps of a scenario wait for their effects, so their times are known from a run only. `timeline_of` runs the
scenario on the simulator and records what it does to nodes, links, assignments, configs and votes, with the times: a
crash or a shutdown lasts until the node is started, a pause until it is resumed, a cut until it is healed, a
reassignment until it is cancelled or replaced, a topic's config until it is set again, the loss of a vote until the
controller is added again; whatever is not healed lasts until the end of the scenario. All other administration, and
requests that are expected to be refused, are no faults and are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, Protocol

from experiments.check.engine import CheckedEngine
from experiments.faults.kinds.administration import Configure, Reassign, VoterChange
from experiments.faults.kinds.links import Cut
from experiments.faults.kinds.processes import Crash, Pause, Restart
from experiments.faults.schema import Fault
from experiments.scenarios.model import (
    ConfigureStep,
    CrashStep,
    FaultStep,
    LinkStep,
    NodeStep,
    ReassignStep,
    Scenario,
    VoterStep,
)
from experiments.scenarios.runner import Runner
from experiments.support.errors import InputError
from protocol.ids import NodeId, TimeMs

_LOSES: dict[str, Literal["nothing", "unflushed", "all"]] = {"none": "nothing", "unflushed": "unflushed", "all": "all"}
_Key = tuple[object, ...]


class _Make(Protocol):
    def __call__(self, *, at_ms: TimeMs, duration_ms: int) -> Fault: ...


def timeline_of(scenario: Scenario, seed: int = 0) -> tuple[Fault, ...]:
    """The faults of a scenario in the order of their beginnings. InputError if a step fails."""
    recorder = _FaultRecorder(scenario, CheckedEngine(scenario.cluster.spec(seed)))
    failed = [step for step in recorder.run().steps if not step.ok]
    if failed:
        raise InputError(scenario.name, f"steps[{failed[0].index}]", failed[0].detail, "steps that succeed")
    return recorder.faults()


@dataclass
class _FaultRecorder(Runner):
    """Runs a scenario and records its faults. `_open` holds the faults that have begun and not ended."""

    _open: dict[_Key, tuple[TimeMs, _Make]] = field(default_factory=dict)
    _ended: list[Fault] = field(default_factory=list)

    def faults(self) -> tuple[Fault, ...]:
        """All faults; those that nothing has healed end with this call."""
        for key in list(self._open):
            self._end(key)
        return tuple(sorted(self._ended, key=lambda fault: (fault.at_ms, fault.kind, fault.nodes)))

    def _begin(self, key: _Key, make: _Make, at_ms: TimeMs | None = None) -> None:
        """A fault has begun, by default now; `make` builds it from its times."""
        self._open.setdefault(key, (self.engine.now_ms() if at_ms is None else at_ms, make))

    def _end(self, key: _Key, at_ms: TimeMs | None = None) -> None:
        if key in self._open:
            began_ms, make = self._open.pop(key)
            end_ms = self.engine.now_ms() if at_ms is None else at_ms
            self._ended.append(make(at_ms=began_ms, duration_ms=max(1, end_ms - began_ms)))

    def _crash(self, fields: CrashStep) -> None:
        records = fields.lose if isinstance(fields.lose, int) else 0
        loses = "records" if isinstance(fields.lose, int) else _LOSES[fields.lose]
        self._end(("paused", fields.node))
        self._begin(("down", fields.node), partial(Crash, node=fields.node, loses=loses, count=records))
        super()._crash(fields)

    def _shutdown(self, fields: NodeStep) -> None:
        self._begin(("down", fields.node), partial(Restart, node=fields.node))
        super()._shutdown(fields)

    def _start(self, fields: NodeStep) -> str | None:
        self._end(("down", fields.node))
        return super()._start(fields)

    def _pause(self, fields: NodeStep) -> None:
        self._begin(("paused", fields.node), partial(Pause, node=fields.node))
        super()._pause(fields)

    def _resume(self, fields: NodeStep) -> None:
        self._end(("paused", fields.node))
        super()._resume(fields)

    def _set_link(self, source: NodeId, target: NodeId, up: bool) -> None:
        if up:
            self._end(("cut", source, target))
        else:
            self._begin(("cut", source, target), partial(Cut, source=(source,), target=(target,), one_way=True))
        super()._set_link(source, target, up)

    def _heal(self, fields: LinkStep | None) -> None:
        for key in list(self._open) if fields is None else ():
            if key[0] == "cut":
                self._end(key)
        super()._heal(fields)

    def _fault(self, fields: FaultStep) -> str:
        times = {"at_ms": self.engine.now_ms(), "duration_ms": fields.duration}
        self._ended.append(fields.fault.model_copy(update=times))
        return super()._fault(fields)

    def _reassign(self, fields: ReassignStep) -> None:
        at_ms = self.engine.now_ms()
        super()._reassign(fields)
        if fields.expect_error is not None:
            return
        key = ("moved", fields.topic, fields.partition)
        self._end(key, at_ms)
        if fields.replicas is not None:
            place = {"topic": fields.topic, "partition": fields.partition, "replicas": tuple(fields.replicas)}
            self._begin(key, partial(_made, Reassign, place), at_ms)

    def _configure(self, fields: ConfigureStep) -> None:
        """Configs of a topic are faults, those of the whole cluster are none."""
        at_ms = self.engine.now_ms()
        super()._configure(fields)
        for name, value in fields.config.items() if fields.topic is not None else ():
            key = ("configured", fields.topic, name)
            self._end(key, at_ms)
            self._begin(key, partial(_made, Configure, {"topic": fields.topic, "config": {name: value}}), at_ms)

    def _remove_voter(self, fields: VoterStep) -> None:
        at_ms = self.engine.now_ms()
        super()._remove_voter(fields)
        if fields.expect_error is None:
            self._begin(("voteless", fields.controller), partial(VoterChange, node=fields.controller), at_ms)

    def _add_voter(self, fields: VoterStep) -> None:
        super()._add_voter(fields)
        if fields.expect_error is None:
            self._end(("voteless", fields.controller))


def _made(kind: type[Fault], fields: Mapping[str, object], *, at_ms: TimeMs, duration_ms: int) -> Fault:
    return kind.model_validate({**fields, "at_ms": at_ms, "duration_ms": duration_ms})
