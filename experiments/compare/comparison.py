"""Where the courses of a scenario differ, and which declared departures and changes of releases explain it.

The simulator is the reference of every release. Another world of the same release may differ from it by departures
only (`experiments/conformance/departures.py`): the smallest set under which the simulator, with these of Kafka's rules
in the place of isray's, has the same course, state by state. Between two releases courses may differ by what changed
(`protocol/kafka_release.py`), since each world is held against the simulator of its own release: a change is named
where the simulator's course differs between the last release before it and the first since.

Where events happen at the same time, such as the heartbeats of two brokers whose links are healed, their order decides,
and each order is right. So the simulator is also run with other seeds, whose messages take other times, without and
with departures. Whatever no order and no such set explains is unexplained: a defect of isray, or a finding about Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

from experiments.compare.course import NOT_RUN, Course, Stage, relaxed
from experiments.compare.worlds import KAFKA, SIM, World, course_in
from experiments.conformance.departures import DEPARTURES, Departure, explanation
from experiments.conformance.shapes import Difference
from experiments.scenarios.model import Scenario
from protocol.kafka_release import RELEASE_CHANGES, KafkaRelease, ReleaseChange, kafka_release

MOST_AT_ONCE = 2
"""How many of Kafka's rules may be needed together for one step: each set that is tried is a run."""
ORDERS = 16
"""How many seeds of the simulator are tried; the first one, 0, is that of the reference."""
Runs = Callable[[Scenario, World, Course | None, Sequence[str]], Course]


@dataclass(frozen=True, slots=True)
class Departed:
    """A world that is not as the simulator of its release: all differences, and the `departures` and the `seed` with
    which the simulator has its course; the seed is None where it has not with any.
    """

    world: World
    differences: tuple[Difference, ...]
    departures: tuple[Departure, ...]
    seed: int | None


@dataclass(frozen=True, slots=True)
class Changed:
    """The simulator under a release, whose course differs from that under the first one, with the changes that the
    differences come from.
    """

    world: World
    differences: tuple[Difference, ...]
    changes: tuple[ReleaseChange, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The courses of a scenario by world, the simulator's first. `departed` are the worlds that differ from the
    simulator of their release, `changed` the releases under which the simulator differs from the first one, `once` what
    nothing explained in a first run and a second one did not have.
    """

    scenario: Scenario
    worlds: tuple[World, ...]
    courses: Mapping[World, Course]
    departed: tuple[Departed, ...]
    changed: tuple[Changed, ...]
    once: tuple[Departed, ...] = ()

    @property
    def unexplained(self) -> tuple[Departed, ...]:
        return tuple(it for it in self.departed if it.seed is None)

    @property
    def first(self) -> Difference | None:
        """The first difference of any world from the first one."""
        reference = self.courses[self.worlds[0]]
        found = (differences(reference, self.courses[world]) for world in self.worlds[1:])
        return min((it[0] for it in found if it), key=place_of, default=None)


def kafkas_own(release: str) -> tuple[str, ...]:
    """The departures from rules that a release has. A real Kafka is expected to follow them: it is paced by the
    simulator under them, so that nothing waits for states which it cannot have.
    """
    return tuple(it.name for it in DEPARTURES if it.rule.holds_in(kafka_release(release)))


def compared_twice(scenario: Scenario, worlds: Sequence[World], run: Runs = course_in) -> Comparison:
    """`compared`, and again where something is unexplained: processes race, also with other work of the machine."""
    found = compared(scenario, worlds, run)
    again = compared(scenario, worlds, run) if found.unexplained else found
    return found if again.unexplained else replace(again, once=found.unexplained)


def compared(scenario: Scenario, worlds: Sequence[World], run: Runs = course_in) -> Comparison:
    """Runs a scenario in all worlds, and explains where they differ. The simulator runs for every release, named or
    not; each real Kafka in a thread of its own, as it mostly waits.
    """
    releases = tuple(dict.fromkeys(world.release for world in worlds))
    reference = {release: run(scenario, World(SIM, release), None, ()) for release in releases}
    everything = tuple(dict.fromkeys((*(World(SIM, release) for release in releases), *worlds)))
    courses = {world: reference[world.release] for world in everything if world.engine == SIM}
    real = [world for world in everything if world.engine == KAFKA]
    paces = [run(scenario, World(SIM, world.release), None, kafkas_own(world.release)) for world in real]
    pool = ThreadPoolExecutor(len(real) or 1)
    try:
        begun = [pool.submit(run, scenario, world, pace, ()) for world, pace in zip(real, paces, strict=True)]
        for world in (it for it in everything if it.engine not in (SIM, KAFKA)):
            courses[world] = run(scenario, world, reference[world.release], ())
        courses |= {world: course.result() for world, course in zip(real, begun, strict=True)}
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    departed = []
    for world in everything:
        if found := differences(reference[world.release], courses[world]):
            by = _explanation(scenario, world.release, reference[world.release], courses[world], run)
            departed.append(Departed(world, tuple(found), *by))
    changed = []
    for release in releases[1:]:
        if found := differences(reference[releases[0]], reference[release]):
            changes = tuple(_changes(scenario, releases[0], release, run))
            changed.append(Changed(World(SIM, release), tuple(found), changes))
    return Comparison(scenario, everything, courses, tuple(departed), tuple(changed))


def _explanation(
    scenario: Scenario, release: str, reference: Course, course: Course, run: Runs
) -> tuple[tuple[Departure, ...], int | None]:
    """The smallest set of departures, and the seed, with which the simulator has a course; the seed None if there is
    none. Departures alone are tried first, then orders alone. `reference` is the simulator's course with seed 0.
    """
    if any(stage.verdict == NOT_RUN for stage in course.stages):
        return (), None
    if found := _departures(scenario, World(SIM, release), reference, course, run):
        return found, 0
    plain: dict[World, Course] = {}
    for sim in (World(SIM, release, seed) for seed in range(1, ORDERS)):
        plain[sim] = run(scenario, sim, None, ())
        if not differences(plain[sim], course):
            return (), sim.seed
    for sim, without in plain.items():
        if found := _departures(scenario, sim, without, course, run):
            return found, sim.seed
    return (), None


def _departures(scenario: Scenario, sim: World, plain: Course, course: Course, run: Runs) -> tuple[Departure, ...]:
    """The smallest set of departures under which this simulator, whose course without any is `plain`, has a course;
    empty if there is none. Rules that the release does not have are left out, and rules of which none changes the
    simulator's course alone are not tried together.
    """
    impossible = {it.name for it in DEPARTURES if not _may_hold(it, sim.release)}

    @cache
    def under(rules: frozenset[str]) -> Course:
        if len(rules) > 1 and all(under(frozenset({rule})) == plain for rule in rules):
            return plain
        return run(scenario, sim, None, sorted(rules)) if rules else plain

    return explanation(lambda rules: differences(under(rules - impossible), course), MOST_AT_ONCE)


def _may_hold(departure: Departure, release: str) -> bool:
    """Whether a release has a rule, or it is not known which ones have it."""
    return not (release and departure.rule.first) or departure.rule.holds_in(kafka_release(release))


def _changes(scenario: Scenario, first: str, second: str, run: Runs) -> Iterator[ReleaseChange]:
    """The changes between two releases that the simulator's course shows, oldest first."""
    order = list(KafkaRelease)
    begin, end = sorted(order.index(kafka_release(name)) for name in (first, second))
    for old, new in pairwise(order[begin : end + 1]):
        made = [it for it in RELEASE_CHANGES if new.has(it) and not old.has(it)]
        courses = [run(scenario, World(SIM, release.value), None, ()) for release in (old, new)] if made else []
        if courses and differences(*courses):
            yield from made


def differences(reference: Course, other: Course) -> list[Difference]:
    """All fields in which two courses differ, stage by stage; of a partition's epoch in wall time as in `relaxed`."""
    exact = reference.is_virtual and other.is_virtual
    found: list[Difference] = []
    for expected, stage in zip(reference.stages, other.stages, strict=True):
        found += _of_stage(expected, stage, exact)
    return found


def _of_stage(expected: Stage, found: Stage, exact: bool) -> Iterator[Difference]:
    place = f"steps[{expected.index}]"
    if expected.verdict != found.verdict:
        yield Difference(f"{place}.verdict", expected.verdict, found.verdict)
    if expected.state is None or found.state is None:
        return
    one, other = (stage if exact else relaxed(stage) for stage in (expected.state, found.state))
    for subject in dict.fromkeys((*one, *other)):
        fields, others = one.get(subject, {}), other.get(subject, {})
        for name in dict.fromkeys((*fields, *others)):
            if fields.get(name) != others.get(name):
                yield Difference(f"{place}.{subject}.{name}", fields.get(name), others.get(name))


def place_of(difference: Difference) -> int:
    """The step of a difference, -1 for the set-up."""
    return int(difference.field[len("steps[") : difference.field.index("]")])
