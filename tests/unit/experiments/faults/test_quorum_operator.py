"""What the operator of a quorum asks for, and what a quorum can bear."""

from __future__ import annotations

import pytest

from experiments.faults.quorum_operator import keeps_majority, next_change
from protocol.messages.quorum import AddVoterRequest, RemoveVoterRequest
from protocol.quorum.voters import ReplicaKey

A, B, C = (ReplicaKey(1000 + number, uuid) for number, uuid in enumerate("abc"))
DISKS = {1000: "a", 1001: "b", 1002: "c"}


def asked(voters: list[ReplicaKey], disks: dict[int, str], voteless: tuple[int, ...] = ()) -> tuple[str, ReplicaKey]:
    request = next_change(voters, disks, voteless)
    assert isinstance(request, AddVoterRequest | RemoveVoterRequest)
    return type(request).__name__, ReplicaKey(request.voter_id, request.voter_uuid)


@pytest.mark.parametrize(
    ("voters", "disks"),
    [([A, B, C], DISKS), ([A, B], {1000: "a", 1001: "b", 1002: ""}), ([A], {1000: "", 1001: ""}), ([A], {1000: "a"})],
)
def test_no_request_while_all_controllers_with_disks_vote(voters: list[ReplicaKey], disks: dict[int, str]) -> None:
    assert next_change(voters, disks, ()) is None


def test_an_excluded_voter_is_removed_and_added_again() -> None:
    assert asked([A, B, C], DISKS, (1001,)) == ("RemoveVoterRequest", B)
    assert next_change([A, C], DISKS, (1001,)) is None
    assert asked([A, C], DISKS) == ("AddVoterRequest", B)


def test_a_replaced_disk_is_removed_before_the_new_one_is_added() -> None:
    disks = DISKS | {1002: "new"}
    assert asked([A, B, C], disks) == ("RemoveVoterRequest", C)
    assert asked([A, B], disks) == ("AddVoterRequest", ReplicaKey(1002, "new"))


def test_no_voter_is_removed_if_the_rest_could_not_commit_that() -> None:
    assert next_change([A, B, C], DISKS | {1001: ""}, (1000,)) is None, "of B and C, B's disk is gone"
    assert asked([A, B, C], DISKS | {1001: "new"}, (1000,)) == ("RemoveVoterRequest", B)
    assert asked([A, C], DISKS | {1001: "new"}, (1000,)) == ("RemoveVoterRequest", A)


def test_the_last_voter_is_not_removed() -> None:
    assert next_change([A], {1000: "a"}, (1000,)) is None


@pytest.mark.parametrize(
    ("voters", "disks", "node", "bearable"),
    [
        ([A], DISKS, 1000, False),
        ([A, B], DISKS, 1000, False),
        ([A, B, C], DISKS, 1000, True),
        ([A, B, C], DISKS | {1001: "new"}, 1000, False),
        ([A, B, C], DISKS | {1001: "new"}, 1001, True),
        ([A, B, C], DISKS | {1001: ""}, 1002, False),
        ([A, B], DISKS, 1002, True),
    ],
)
def test_a_majority_of_the_voters_keep_their_disks(
    voters: list[ReplicaKey], disks: dict[int, str], node: int, bearable: bool
) -> None:
    assert keeps_majority(voters, disks, node) is bearable
