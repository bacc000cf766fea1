"""Apache Kafka's releases, as far as the rules of replication changed between them since 4.0.

A cluster of generation `kip-497` or `kip-966-elr` decides as the controllers of one release do
(`ClusterConfig.kafka_release`). A release begins with the behaviour of the one before it; `RELEASE_CHANGES` says what
changed, and each change is a switch that protocol code tests (`KafkaRelease.has`). Releases that decide alike share a
name: 4.1.2 stands for 4.1.1 to 4.2.2, 4.3 for 4.3.0 and 4.3.1. `kip-966`, which no release has, has rules of its own.

Where isray departs from all releases, `protocol/kafka_rules.py` has the rule.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

from protocol.values import direct


@direct
class KafkaRelease(Enum):
    """The releases that differ, oldest first."""

    V4_0 = "4.0"
    V4_1_0 = "4.1.0"
    V4_1_2 = "4.1.2"
    V4_3 = "4.3"
    V4_4 = "4.4"

    def has(self, change: ReleaseChange) -> bool:
        """Whether this release, or one before it, made the change."""
        return change.name in _MADE_BY[self]


NEWEST = KafkaRelease.V4_4


class ReleaseChange(NamedTuple):
    """One changed rule. `first` is the exact release that made it, `source` its issue or pull request in
    apache/kafka."""

    name: str
    first: str
    before: str
    since: str
    source: str


LAST_KNOWN_LEADER_BY_RECORD = ReleaseChange(
    "last-known-leader-by-record",
    first="4.1.1",
    before="The last leader is recorded as the last known one when the ISR becomes empty; it is removed from the record"
    " when there is a leader.",
    since="The last leader is recorded as the last known one by every change that leaves the partition without a leader"
    " and finds none recorded; it is removed by a change that elects a leader.",
    source="PR 20629",
)
ADDED_REPLICAS_COMPLETE = ReleaseChange(
    "added-replicas-complete",
    first="4.3.0",
    before="A reassignment completes when all replicas of the final assignment are in the ISR.",
    since="A reassignment completes when all adding replicas are in the ISR and, where fewer are added than removed,"
    " all replicas of the final assignment.",
    source="KAFKA-19975, PR 21114",
)
RELEASE_CHANGES = (LAST_KNOWN_LEADER_BY_RECORD, ADDED_REPLICAS_COMPLETE)
"""What changed, oldest first."""

_EXACT = re.compile(r"4\.([0-4])(?:\.([0-9]+))?")
_BEGIN = {
    KafkaRelease.V4_0: (0, 0),
    KafkaRelease.V4_1_0: (1, 0),
    KafkaRelease.V4_1_2: (1, 1),
    KafkaRelease.V4_3: (3, 0),
    KafkaRelease.V4_4: (4, 0),
}
"""The first exact release of each, without the 4 before it."""


def kafka_release(text: str) -> KafkaRelease:
    """The release whose behaviour the release `text` (`4.2.0`) has. ValueError for one that is not in 4.0 to 4.4."""
    exact = _EXACT.fullmatch(text)
    if exact is None:
        raise ValueError(text)
    wanted = int(exact[1]), int(exact[2] or 0)
    return [release for release, first in _BEGIN.items() if first <= wanted][-1]


_MADE_BY = {
    release: frozenset(it.name for it in RELEASE_CHANGES if _BEGIN[kafka_release(it.first)] <= _BEGIN[release])
    for release in KafkaRelease
}
