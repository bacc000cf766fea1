"""Failures at times: steps of scenarios, or faults, which are given or drawn from the seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from experiments.check.engine import CheckedEngine
from experiments.engines.port import Engine
from experiments.faults.controls import Controls
from experiments.faults.draw import Rates, timeline
from experiments.faults.inject import Injector
from experiments.faults.schema import Fault
from experiments.faults.targets import Targets
from experiments.scenarios.runner import Runner
from experiments.support.durations import ALLOWED, parse_duration_ms
from experiments.support.errors import InputError
from experiments.virtual.engine import VirtualEngine
from protocol.ids import FIRST_APPLICATION, NO_LEADER, TimeMs

SOURCE = "simulated_kafka"
SWARM = "swarm"
SWARM_BEGIN_MS = 1_000
SWARM_LENGTH_MS = 60_000
SWARM_RATES = Rates(
    mean_between_ms=8_000,
    durations_ms=(500, 3_000, 12_000),
    weights={"crash": 3, "restart": 1, "pause": 2, "cut": 3, "disturb": 1, "slow_disk": 1, "flapping_link": 1},
)


Steps = Sequence[Mapping[str, object]] | Sequence[Fault] | str
"""What a timeline is made of: steps of scenarios, faults with times since the application's start, or `swarm`."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Steps, or `faults` (with `is_swarm` drawn ones), with their times since the application's start."""

    raw_steps: tuple[Mapping[str, object], ...]
    at_ms: tuple[TimeMs | None, ...]
    within_ms: TimeMs
    is_swarm: bool = False
    faults: tuple[Fault, ...] = ()

    @classmethod
    def of(cls, steps: Steps, within: str) -> Timeline:
        """InputError for a text other than `swarm`, for what is no step, and for times that go back or are none."""
        within_ms = _duration_ms("within", within)
        if isinstance(steps, str):
            if steps != SWARM:
                raise InputError(SOURCE, "timeline", steps, f"{SWARM}, or a list of steps")
            return cls((), (), within_ms, True)
        faults = tuple(step for step in steps if isinstance(step, Fault))
        if faults:
            return cls((), (), within_ms, faults=faults)
        return cls._of_steps([step for step in steps if not isinstance(step, Fault)], within_ms)

    @classmethod
    def _of_steps(cls, steps: Sequence[Mapping[str, object]], within_ms: TimeMs) -> Timeline:
        for step in steps:
            if not isinstance(step, Mapping):
                raise InputError(SOURCE, "timeline", step, 'a step of scenarios, such as {"crash": {"broker": 0}}')
        raw = tuple({name: value for name, value in step.items() if name != "at"} for step in steps)
        times = tuple(_duration_ms("timeline.at", step["at"]) if "at" in step else None for step in steps)
        given = [time for time in times if time is not None]
        if given != sorted(given):
            raise InputError(SOURCE, "timeline", given, "times `at` in ascending order")
        return cls(raw, times, within_ms)

    def carry_out(self, runner: Runner, engine: VirtualEngine, is_done: Callable[[], bool]) -> None:
        """Runs the application until it is done, with each step at its time. StepFailedError where one fails."""
        begun_ms = engine.now_ms()
        faults = self._drawn(runner, engine) if self.is_swarm else self.faults
        if faults:
            schedule(faults, runner, engine)
        for step, at_ms in zip(runner.scenario.steps, self.at_ms, strict=False):
            if at_ms is not None and engine.run_until(is_done, max(0, begun_ms + at_ms - engine.now_ms())):
                return
            runner.carry_out(step)
        engine.run_until(is_done, begun_ms + self.within_ms - engine.now_ms())

    def settle(self, engine: VirtualEngine, within_ms: int) -> None:
        """Ends all failures, and waits until every partition has a leader and all of its replicas in sync."""
        engine.heal_links()
        for node in engine.spec.node_ids:
            if engine.is_paused(node):
                engine.resume(node)
            if not engine.is_running(node):
                engine.start(node)
        engine.run_until(lambda: is_whole(engine), within_ms)

    @staticmethod
    def _drawn(runner: Runner, engine: VirtualEngine) -> tuple[Fault, ...]:
        spec = engine.spec
        view = engine.view()
        counts = dict.fromkeys((topic.name for topic in runner.scenario.topics), 0)
        for place in () if view is None else view.partitions:
            counts[place.topic] += 1
        targets = Targets(spec.broker_ids, spec.controller_ids, (FIRST_APPLICATION,), counts, 3)
        return timeline(SWARM_RATES, targets, Random(f"{spec.seed}/swarm"), SWARM_BEGIN_MS, SWARM_LENGTH_MS)


def schedule(faults: Sequence[Fault], runner: Runner, engine: CheckedEngine) -> None:
    """Has faults happen, whose times count from now on."""
    placed = {topic.name: runner.as_placed(topic) for topic in runner.scenario.topics}
    controls = Controls(engine, placed, runner.clients.next_id)
    controls.headings = runner.headings
    Injector(controls).schedule(faults, engine.now_ms())


def _duration_ms(name: str, text: object) -> int:
    try:
        return parse_duration_ms(text)
    except ValueError as error:
        raise InputError(SOURCE, name, text, ALLOWED) from error


def is_whole(engine: Engine) -> bool:
    """Whether every partition has a leader and all of its replicas in sync."""
    view = engine.view()
    return view is not None and all(
        state.leader != NO_LEADER and {*state.isr} == {*state.replicas} for state in view.partitions.values()
    )
