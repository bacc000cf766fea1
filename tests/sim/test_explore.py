"""The exhaustive search: it ends, it is the same every time, it finds a shortest way to what is wrong
(experiments/hunt/explore).
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from typer.testing import CliRunner

from experiments.cli.main import application
from experiments.engines.port import ClusterSpec
from experiments.faults.schema import Bounds
from experiments.hunt.explore import report as explore_report
from experiments.hunt.explore.checker import StepChecker
from experiments.hunt.explore.machines import Machines
from experiments.hunt.explore.model import Model
from experiments.hunt.explore.report import Report, SearchSpec, run
from experiments.hunt.explore.search import Search
from experiments.hunt.mutants.mutant import switched_off
from experiments.hunt.mutants.registry import all_mutants
from experiments.support.errors import InputError
from protocol.broker import fetcher
from protocol.config import ClusterConfig
from protocol.features import LOG_GENERATIONS, Generation

QUIET = {"records": 1, "lossy": 0, "fences": 0, "delays": -1}
"""One record, replicated to two followers in every order."""


def spec(**bounds: int) -> SearchSpec:
    return SearchSpec(bounds=QUIET | bounds)


def test_one_record_in_every_order() -> None:
    report = run(spec())
    assert report.complete
    assert report.violation is None
    assert report.distinct_states == 13
    assert report.depth == 7  # produced, and to each follower: records, the next fetch, the high watermark


@pytest.mark.slow
def test_two_records_in_every_order_end_too() -> None:
    one, two = run(spec()), run(spec(records=2))
    assert two.complete
    assert two.violation is None
    assert two.distinct_states > one.distinct_states


@pytest.mark.slow
def test_with_delays_there_are_fewer_orders() -> None:
    every = run(spec(records=2))
    few = [run(spec(records=2, delays=delays)) for delays in (0, 1)]
    assert all(report.complete and report.violation is None for report in few)
    assert few[0].distinct_states < few[1].distinct_states
    assert few[0].distinct_states < every.distinct_states


@pytest.mark.proof
@pytest.mark.slow
def test_the_default_search_ends_and_finds_nothing() -> None:
    """One record, a lossy crash and a fence, on three brokers with min ISR 2."""
    report = run(SearchSpec())
    assert report.bounds == Bounds()
    assert (report.bounds.records, report.bounds.lossy, report.bounds.fences) == (1, 1, 1)
    assert report.complete
    assert report.violation is None
    assert report.distinct_states > 10_000
    assert report.document()["states_per_second"] > 0


def test_a_search_that_is_cut_short_is_not_complete() -> None:
    by_depth = run(replace(spec(), depth=2))
    assert (by_depth.complete, by_depth.depth) == (False, 2)
    by_states = run(replace(spec(), max_states=4))
    assert not by_states.complete
    assert by_states.distinct_states < 13


@pytest.mark.slow
def test_the_same_search_gives_the_same_report() -> None:
    asked = replace(spec(lossy=1, fences=1, delays=0), depth=6)
    assert document(run(asked)) == document(run(asked))


def document(report: Report) -> dict[str, object]:
    times = ("seconds", "states_per_second")
    return {name: value for name, value in report.document().items() if name not in times}


@pytest.mark.parametrize("generation", LOG_GENERATIONS)
def test_every_generation_can_be_searched(generation: Generation) -> None:
    report = run(replace(spec(), generation=generation))
    assert report.complete
    assert report.violation is None


def test_an_early_acknowledgement_is_found_after_one_step() -> None:
    report = run(replace(spec(), mutant="acks-all-answered-at-append"))
    assert report.violation is not None
    assert (report.violation.invariant, report.violation.steps) == ("AcknowledgedIsCommitted", 1)
    assert report.violation.story[0] == "-- 1. a client sends record 0 to broker-0"
    assert report.violation.story[-1].startswith("!! AcknowledgedIsCommitted: broker 0 acknowledges the record at 0")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutant", "bounds", "invariant", "steps"),
    [
        ("high-watermark-over-proposed-isr", {"shrinks": 1}, "ReplicationQuorumSuperset", 1),
        ("leader-epoch-not-raised", {"fences": 1}, "EpochsRise", 1),
        ("partition-epoch-not-raised", {"fences": 1}, "EpochsRise", 1),
        ("fenced-broker-stays-in-isr", {"fences": 1}, "ValidControllerState", 1),
        ("fenced-replica-elected", {"records": 0, "fences": 3}, "ValidControllerState", 3),
        ("maximal-isr-not-used", {"fences": 1}, "ReplicationQuorumSuperset", 7),
        ("elr-kept-at-min-isr", {"records": 0, "fences": 3}, "ValidControllerIsrAndElr", 11),
        ("unclean-restart-taken-as-clean", {"lossy": 1, "fences": 1}, "LeaderCandidateCompleteness", 11),
        ("unclean-member-kept-in-elr", {"lossy": 1, "fences": 1}, "LeaderCandidateCompleteness", 11),
        ("expansion-without-catching-up", {"shrinks": 1, "delays": 1}, "LeaderCandidateCompleteness", 16),
    ],
)
def test_the_shortest_counterexample_of_a_mutant(
    mutant: str, bounds: dict[str, int], invariant: str, steps: int
) -> None:
    report = run(replace(spec(**{"delays": 0} | bounds), mutant=mutant))
    assert report.violation is not None
    assert (report.violation.invariant, report.violation.steps) == (invariant, steps)


@pytest.mark.slow
def test_sessions_that_every_incarnation_numbers_alike_are_confused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch of a crashed process is held up and answered to the next one, whose own session has the same number."""
    bounds = {"records": 0, "lossy": 0, "fences": 1, "crashes": 1, "delays": 1}
    searched = replace(spec(**bounds), brokers=2, min_isr=1)
    assert run(searched).violation is None
    monkeypatch.setattr(fetcher, "SESSIONS_PER_EPOCH", 0)
    found = run(searched).violation
    assert found is not None
    assert (found.invariant, found.steps) == ("FetchSessionsAgree", 12)


def test_a_compiled_build_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explore_report, "is_compiled", lambda: True)
    with pytest.raises(InputError, match="found compiled; allowed: the interpreted sources"):
        run(spec())


V3 = SearchSpec(brokers=2, min_isr=1, generation=Generation.V3)
NOTHING = {"records": 0, "lossy": 0, "fences": 0}
"""Two brokers, one of which leads a partition and one is the controller, with a store."""


@pytest.mark.covers("M33", "M34", "M39")
@pytest.mark.parametrize(
    ("bounds", "states", "depth"),
    [({"records": 1}, 5, 4), ({"records": 1, "shrinks": 1}, 112, 28), ({"fences": 1}, 144, 74)],
)
def test_a_cluster_with_a_store_is_searched_to_the_end(bounds: dict[str, int], states: int, depth: int) -> None:
    """With `fences` the session of the leader ends, which is the controller too, or that of the other broker; with
    `shrinks` the leader writes its ISR to the store, and again when the follower is back.
    """
    report = run(replace(V3, bounds=NOTHING | bounds))
    assert report.complete
    assert report.violation is None
    assert (report.distinct_states, report.depth) == (states, depth)


@pytest.mark.covers("A7", "A35", "A48", "M30")
@pytest.mark.parametrize(
    ("mutant", "bounds", "invariant", "steps"),
    [
        ("store-isr-before-write", {"shrinks": 1}, "LeaderUsesStoredIsr", 1),
        ("store-isr-unconditional", {"shrinks": 1, "fences": 1}, "LeaderEpochsRise", 11),
        ("store-controller-epoch-not-counted", {"fences": 1}, "OneControllerPerEpoch", 33),
    ],
)
def test_the_shortest_counterexample_of_a_mutant_of_v3(
    mutant: str, bounds: dict[str, int], invariant: str, steps: int
) -> None:
    report = run(replace(V3, bounds=NOTHING | bounds, mutant=mutant))
    assert report.violation is not None
    assert (report.violation.invariant, report.violation.steps) == (invariant, steps)
    assert len([line for line in report.violation.story if line.startswith("-- ")]) == steps


@pytest.mark.slow
def test_two_searches_of_v3_give_the_same_report() -> None:
    asked = replace(V3, bounds=NOTHING | {"fences": 1, "crashes": 1}, depth=12)
    assert document(run(asked)) == document(run(asked))


@pytest.mark.parametrize("name", ["shutdowns", "failovers", "recoveries"])
def test_events_that_a_search_of_v3_does_not_have_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"{name}=0 in v3"):
        run(replace(V3, bounds={name: 1}))


def test_recoveries_need_a_generation_that_has_them() -> None:
    with pytest.raises(InputError, match="recoveries=0 before kip-966"):
        run(SearchSpec(generation=Generation.KIP_497, bounds={"recoveries": 1}))


PAIR = replace(spec(delays=0), brokers=2, min_isr=1, strategy="proactive")
"""Two brokers with min ISR 1 and a recovery strategy."""


@pytest.mark.slow
def test_a_search_with_failovers_ends() -> None:
    without, once = run(spec(fences=1, delays=0)), run(spec(fences=1, failovers=1, delays=0))
    assert once.complete
    assert once.violation is None
    assert once.distinct_states > 5 * without.distinct_states


@pytest.mark.slow
def test_a_search_with_a_recovery_ends() -> None:
    """Each broker may lose its session; the empty one may be elected once the time of the recovery is over."""
    report = run(replace(PAIR, bounds={**PAIR.bounds, "fences": 2, "recoveries": 1}))
    assert report.complete
    assert report.violation is None
    assert report.distinct_states > 1_000


@pytest.mark.parametrize(
    ("mutant", "bounds", "invariant", "steps"),
    [
        ("recovery-responses-of-any-leader-epoch", {"fences": 2}, "RecoveryResponsesAreCurrent", 10),
        ("recovery-does-not-wait-for-fenced-replicas", {"fences": 2}, "RecoveryHasRequiredResponses", 14),
        ("unclean-election-not-recovering", {"fences": 2}, "RecoveryStateKept", 15),
        ("recovery-outlasts-a-clean-election", {"fences": 2}, "RecoveryOnlyWithoutCleanCandidate", 18),
        ("recovery-survives-the-controller", {"fences": 2, "failovers": 1}, "RecoveryIdsAreUnique", 6),
    ],
)
def test_the_shortest_counterexample_of_a_mutant_of_recovery(
    mutant: str, bounds: dict[str, int], invariant: str, steps: int
) -> None:
    report = run(replace(PAIR, bounds={**PAIR.bounds, "recoveries": 1, **bounds}, mutant=mutant))
    assert report.violation is not None
    assert (report.violation.invariant, report.violation.steps) == (invariant, steps)
    assert len([line for line in report.violation.story if line.startswith("-- ")]) == steps


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "bounds"),
    [
        (spec(delays=0), {"fences": 1}),
        (spec(delays=0), {"lossy": 1}),
        (spec(delays=0), {"shrinks": 1}),
        (replace(PAIR, depth=12), {"fences": 2, "recoveries": 1, "failovers": 1}),
        (replace(spec(delays=0), mutant="maximal-isr-not-used"), {"fences": 1}),
        (replace(spec(delays=0), mutant="unclean-restart-taken-as-clean"), {"lossy": 1, "fences": 1}),
        (replace(PAIR, mutant="recovery-does-not-wait-for-fenced-replicas"), {"fences": 2, "recoveries": 1}),
    ],
)
def test_checks_read_no_more_than_their_results_depend_on(
    monkeypatch: pytest.MonkeyPatch, asked: SearchSpec, bounds: dict[str, int]
) -> None:
    """Checks that are looked up by what they read of the other nodes come to what checks that read everything do."""
    asked = replace(asked, bounds={**asked.bounds, **bounds})
    by_parts = run(asked)
    begin = StepChecker.__init__

    def read_everything(self: StepChecker, spec: ClusterSpec, machines: Machines) -> None:
        begin(self, spec, machines)
        self._reads_everything = True

    monkeypatch.setattr(StepChecker, "__init__", read_everything)
    assert document(run(asked)) == document(by_parts)


def test_the_path_to_a_state_can_be_computed_again() -> None:
    model = Model(ClusterConfig.of(Generation.KIP_966), 3, 2, Bounds(**QUIET))
    found = Search(model).run()
    last = list(found._seen)[-1]
    path = found._path_to(found._seen[last])
    assert len(path) == found.depth
    state = model.first
    for step in path:
        assert step.state in [successor.state for successor in model.successors(state)]
        state = step.state


def test_a_broker_may_crash_lose_records_and_restart() -> None:
    model = Model(ClusterConfig.of(Generation.KIP_966), 3, 2, Bounds(records=1, lossy=1, fences=0, delays=0))
    state, done = model.first, []
    for wanted in ("produce", "crash", "fire", "start"):
        [*_, chosen] = [found for found in model.successors(state) if found.action[0] == wanted]
        assert not chosen.wrong
        done.append(chosen.action[:2])
        state = chosen.state
    assert done == [("produce", 0), ("crash", 0), ("fire", 1000), ("start", 0)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--bounds", "lossy=0,fences=0"], "distinct states, which are all states within the bounds."),
        (["--depth", "1"], "; the search ended at depth 1, before all states within the bounds were reached."),
        (
            ["--mutant", "acks-all-answered-at-append"],
            "AcknowledgedIsCommitted is violated after 1 steps, and not after",
        ),
    ],
)
def test_the_command_ends_with_its_verdict(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(application(), ["explore", *arguments])
    assert result.exit_code == ("--mutant" in arguments)
    assert words in result.stdout.splitlines()[-1]


@pytest.mark.slow
def test_a_mutant_has_no_effect_after_its_block() -> None:
    with switched_off(all_mutants()["acks-all-answered-at-append"]):
        pass
    assert run(spec()).violation is None
