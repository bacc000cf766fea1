"""Which replica an unclean recovery elects, as a pure comparison of the answers (F5, F6, F30, M61).

The replica whose last record has the highest leader epoch wins: it has followed the latest leader, whereas a longer log
of an older epoch has records that this leader never had. Among those the longest log wins. Among equal logs a required
replica (in a balanced recovery a member of the last known ELR) precedes the others, which therefore win only with more
records (F30); then the order of the assignment decides, so that the same answers always elect the same leader.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from protocol.ids import BrokerId
from protocol.messages.recovery import ReplicaAnswer

ONLY_ANSWER = "it alone answered"
HIGHEST_EPOCH = "its last record has the highest leader epoch"
LONGEST_LOG = "of those with the highest leader epoch its log is the longest"
LAST_KNOWN = "of those with the longest log it is the first in the last known ELR"
FIRST_REPLICA = "of those with the longest log it is the first in the assignment"


class Ranked(NamedTuple):
    leader: BrokerId
    reason: str


def best(
    answers: Iterable[ReplicaAnswer], assignment: Sequence[BrokerId], required: Collection[BrokerId] = ()
) -> Ranked:
    """The winner among one or more answers of replicas in `assignment`, of which those in `required` had to answer."""
    in_order = sorted(answers, key=lambda answer: assignment.index(answer.broker_id))
    in_order.sort(key=lambda answer: answer.broker_id not in required)
    ranked = sorted(in_order, key=_rank, reverse=True)
    first, others = ranked[0], ranked[1:]
    if not others:
        reason = ONLY_ANSWER
    elif others[0].last_written_leader_epoch < first.last_written_leader_epoch:
        reason = HIGHEST_EPOCH
    elif _rank(others[0]) < _rank(first):
        reason = LONGEST_LOG
    elif first.broker_id in required and any(
        _rank(other) == _rank(first) and other.broker_id not in required for other in others
    ):
        reason = LAST_KNOWN
    else:
        reason = FIRST_REPLICA
    return Ranked(first.broker_id, reason)


def _rank(answer: ReplicaAnswer) -> tuple[int, int]:
    return answer.last_written_leader_epoch, answer.log_end_offset
