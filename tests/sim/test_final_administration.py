"""The last phase of a plan: answers of administration are right in every generation, and wrong ones are violations. So
are a removal without a next leader epoch, a gauge that counts too much, and a quorum that counts wrongly.
"""

from __future__ import annotations

from typing import Any

import pytest

from experiments.check import invariants_metrics
from experiments.check.quorum_rules import MAJORITY, ONE_LEADER
from experiments.hunt.fuzz.bias import Bias
from experiments.hunt.fuzz.plan import Plan
from experiments.hunt.fuzz.run import ANSWERS, run_plan
from experiments.hunt.fuzz.swarm import draw
from experiments.hunt.mutants.mutant import PlanFocus
from experiments.hunt.mutants.registry import all_mutants, mutated
from protocol.config import MAX_MESSAGE_BYTES
from protocol.controller import administration, features, metrics, placement
from protocol.errors import ErrorCode, Refused
from protocol.features import LOG_GENERATIONS, Generation
from protocol.metadata import queries
from protocol.metadata.image import MetadataImage
from protocol.quorum import leader as quorum_leader
from protocol.quorum.leader_state import LeaderState
from protocol.quorum.membership import VoterRequest
from protocol.quorum.replica import QuorumReplica
from protocol.quorum.voters import VoterSet


def plan_of(generation: str, replicas: int = 3, **changes: Any) -> Plan:
    """Three brokers, an authorizer, one topic, and nothing else."""
    base: dict[str, Any] = {
        "seed": 1,
        "brokers": 3,
        "generation": generation,
        "config": {
            "authorizer.class.name": "standard",
            "super.users": "User:operator",
            "allow.everyone.if.no.acl.found": True,
        },
        "topics": [{"name": "t", "assignments": [list(range(replicas))]}],
    }
    return Plan.model_validate(base | changes)


def refuse_all(*_: object) -> None:
    raise Refused(ErrorCode.INVALID_UPDATE_VERSION, "no")


@pytest.mark.parametrize("generation", LOG_GENERATIONS)
@pytest.mark.parametrize("changes", [{}, {"racks": 2, "brokers": 4}, {"brokers": 1, "replicas": 1}, {"controllers": 3}])
def test_answers_are_right_in_every_generation(generation: Generation, changes: dict[str, Any]) -> None:
    assert run_plan(plan_of(generation.value, **changes)).violation is None


@pytest.mark.parametrize(
    ("owner", "name", "function", "detail"),
    [
        (administration, "_entry_error", lambda entry: "no", "CreateAclsRequest: found INVALID_REQUEST"),
        (placement, "_place_one", lambda racks, first, factor: (0, 1, 2)[:factor], "DescribeTopicRequest: the first"),
        (queries, "is_offline", lambda image, broker: True, "DescribeTopicRequest: found"),
        (queries, "_names", lambda image, request: (), "DescribeTopicRequest: found NONE"),
        (features, "_require_allowed", refuse_all, "UpdateFeaturesRequest: found INVALID_UPDATE_VERSION"),
    ],
)
def test_a_wrong_answer_is_a_violation(
    owner: object, name: str, function: object, detail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, function)
    violation = run_plan(plan_of("kip-497" if owner is features else "kip-966")).violation
    assert violation is not None
    assert violation.invariant == ANSWERS
    assert violation.detail.startswith(detail)


@pytest.mark.parametrize(
    ("off_by", "found"), [(-1, "MESSAGE_TOO_LARGE, expected NONE"), (1, "NONE, expected MESSAGE_T")]
)
def test_a_limit_that_is_off_by_one_byte_is_a_violation(
    off_by: int, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = MetadataImage.int_config

    def wrong(image: MetadataImage, topic_id: str | None, name: str) -> int:
        return right(image, topic_id, name) + (off_by if name == MAX_MESSAGE_BYTES else 0)

    monkeypatch.setattr(MetadataImage, "int_config", wrong)
    violation = run_plan(plan_of("kip-966", config={})).violation
    assert violation is not None
    assert violation.invariant == ANSWERS
    assert violation.detail.startswith(f"ProduceCommand: found {found}")


def test_a_change_of_the_voters_with_a_timeout_of_0_is_judged_by_its_content(monkeypatch: pytest.MonkeyPatch) -> None:
    right = quorum_leader.rejection

    def wrong(request: VoterRequest, voters: VoterSet, *, static: bool) -> tuple[ErrorCode, str]:
        return (ErrorCode.INVALID_REQUEST, "") if request.timeout_ms == 0 else right(request, voters, static=static)

    monkeypatch.setattr(quorum_leader, "rejection", wrong)
    violation = run_plan(plan_of("kip-966")).violation
    assert violation is not None
    assert violation.detail == "RemoveVoterRequest: found INVALID_REQUEST, expected VOTER_NOT_FOUND"


def test_a_reassignment_that_removes_a_replica_in_the_same_leader_epoch_is_a_violation() -> None:
    name = "leader-epoch-kept-by-the-same-leader"
    focus = all_mutants()[name].focus
    assert isinstance(focus, PlanFocus)
    with mutated(name):
        violation = run_plan(focus.plan(1)).violation
    assert violation is not None
    assert violation.invariant == "EpochsRise"
    assert "are removed in leader epoch" in violation.detail


def test_a_gauge_is_wrong_that_counts_a_partition_with_a_leader_as_waiting_for_a_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Although the invariant asks the same function."""
    for module in (metrics, invariants_metrics):
        monkeypatch.setattr(module, "needs_user", lambda *_: True)
    violation = run_plan(plan_of("kip-966")).violation
    assert violation is not None
    assert violation.invariant == "GaugesMatchTheirDefinitions"


def test_a_quorum_whose_leader_counts_itself_alone_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = draw(0, bias=Bias(themes=("divided quorum",)))
    assert run_plan(plan).violation is None
    monkeypatch.setattr(LeaderState, "majority_end_offset", lambda self, voters, own_end: own_end)
    violation = run_plan(plan).violation
    assert violation is not None
    assert violation.invariant == MAJORITY


def test_two_leaders_of_a_quorum_in_one_epoch_are_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QuorumReplica, "is_leader", property(lambda self: self.epoch > 0))
    violation = run_plan(plan_of("kip-966", controllers=3)).violation
    assert violation is not None
    assert violation.invariant == ONE_LEADER
    assert violation.invariant in (ONE_LEADER, MAJORITY)
