"""Failures at times: steps of scenarios, or faults drawn from the seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from experiments.faults.controls import Controls
from experiments.faults.draw import Rates, timeline
from experiments.faults.inject import Injector
from experiments.faults.targets import Targets
from experiments.scenarios.runner import Runner
from experiments.support.durations import parse_duration_ms
from experiments.support.errors import InputError
from experiments.virtual.engine import VirtualEngine
from protocol.ids import FIRST_APPLICATION, NO_LEADER, TimeMs

SWARM = "swarm"
SWARM_BEGIN_MS = 1_000
SWARM_LENGTH_MS = 60_000
SWARM_RATES = Rates(
    mean_between_ms=8_000,
    durations_ms=(500, 3_000, 12_000),
    weights={"crash": 3, "restart": 1, "pause": 2, "cut": 3, "disturb": 1, "slow_disk": 1, "flapping_link": 1},
)


@dataclass(frozen=True, slots=True)
class Timeline:
    """Steps with the times since the application's start at which they begin; with `is_swarm` drawn faults."""

    raw_steps: tuple[Mapping[str, object], ...]
    at_ms: tuple[TimeMs | None, ...]
    within_ms: TimeMs
    is_swarm: bool = False

    @classmethod
    def of(cls, steps: Sequence[Mapping[str, object]] | str, within: str) -> Timeline:
        """InputError for a text other than `swarm`, or for times that go back."""
        within_ms = parse_duration_ms(within)
        if isinstance(steps, str):
            if steps != SWARM:
                raise InputError("simulated_kafka", "timeline", steps, f"{SWARM}, or a list of steps")
            return cls((), (), within_ms, True)
        raw = tuple({name: value for name, value in step.items() if name != "at"} for step in steps)
        times = tuple(parse_duration_ms(step["at"]) if "at" in step else None for step in steps)
        given = [time for time in times if time is not None]
        if given != sorted(given):
            raise InputError("simulated_kafka", "timeline", given, "times `at` in ascending order")
        return cls(raw, times, within_ms)

    def carry_out(self, runner: Runner, engine: VirtualEngine, is_done: Callable[[], bool]) -> None:
        """Runs the application until it is done, with each step at its time. StepFailedError where one fails."""
        begun_ms = engine.now_ms()
        if self.is_swarm:
            self._schedule_faults(runner, engine, begun_ms)
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
        engine.run_until(lambda: _is_whole(engine), within_ms)

    def _schedule_faults(self, runner: Runner, engine: VirtualEngine, begun_ms: TimeMs) -> None:
        spec, topics = engine.spec, {topic.name: topic for topic in runner.scenario.topics}
        view = engine.view()
        counts = dict.fromkeys(topics, 0)
        for place in () if view is None else view.partitions:
            counts[place.topic] += 1
        targets = Targets(spec.broker_ids, spec.controller_ids, (FIRST_APPLICATION,), counts, 3)
        rng = Random(f"{spec.seed}/swarm")
        faults = timeline(SWARM_RATES, targets, rng, begun_ms + SWARM_BEGIN_MS, begun_ms + SWARM_LENGTH_MS)
        placed = {name: runner.as_placed(topic) for name, topic in topics.items()}
        Injector(Controls(engine, placed, runner.clients.next_id)).schedule(faults)


def _is_whole(engine: VirtualEngine) -> bool:
    view = engine.view()
    return view is not None and all(
        state.leader != NO_LEADER and {*state.isr} == {*state.replicas} for state in view.partitions.values()
    )
