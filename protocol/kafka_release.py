"""Apache Kafka's releases: which of them run which protocol generation, and how the rules of replication changed
between them since 4.0.

A cluster of generation `kip-497` or `kip-966-elr` decides as the controllers of one release do
(`ClusterConfig.kafka_release`). A release begins with the behaviour of the one before it; `RELEASE_CHANGES` says what
changed, and each change is a switch that protocol code tests (`KafkaRelease.has`). Releases that decide alike share a
name (`KafkaRelease.exact`). `kip-966`, which no release has, has rules of its own.

Sources of `GENERATION_RELEASES`: KIP-497 (Kafka 2.7), KIP-966; the upgrade notes of Apache Kafka 4.0 (Eligible Leader
Replicas as a preview, off unless `eligible.leader.replicas.version=1` is set) and 4.1 (on in new clusters). Unclean
Recovery, the second part of KIP-966, is in no release.

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

    @property
    def exact(self) -> str:
        """The exact releases that decide as this one does."""
        return _EXACT_RELEASES[self]


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
_EXACT_RELEASES = {
    KafkaRelease.V4_0: "4.0.0 and its fixes",
    KafkaRelease.V4_1_0: "4.1.0",
    KafkaRelease.V4_1_2: "4.1.1 to 4.2.2",
    KafkaRelease.V4_3: "4.3.0 and 4.3.1",
    KafkaRelease.V4_4: "4.4.0",
}


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


class GenerationReleases(NamedTuple):
    """The `releases` that run a protocol generation, in a few words and in a `sentence`; whether one of them has it as
    a whole."""

    releases: str
    sentence: str
    installable: bool


_WITHOUT_ELR = "Kafka 2.7 to 3.9; 4.0 unless ELR is switched on; 4.1 and later with ELR switched off"
_WITH_ELR = "Kafka 4.0 as a preview, off by default; 4.1 and later, on in new clusters"
GENERATION_RELEASES = {
    "v3": GenerationReleases(
        "no release; the design from which Kafka 0.8.0 was built",
        "No release of Apache Kafka has v3, the design from which 0.8.0 was built: up to 2.6 leaders wrote their ISRs"
        " to ZooKeeper, and before 0.11 followers truncated to their high watermarks (KIP-101).",
        installable=False,
    ),
    "kip-497": GenerationReleases(
        _WITHOUT_ELR, f"kip-497 is Kafka without Eligible Leader Replicas: {_WITHOUT_ELR}.", installable=True
    ),
    "kip-966-elr": GenerationReleases(
        _WITH_ELR, f"kip-966-elr is Kafka with Eligible Leader Replicas: {_WITH_ELR}.", installable=True
    ),
    "kip-966": GenerationReleases(
        "ELR: Kafka 4.0 (preview), 4.1 and later; Unclean Recovery: in no release yet",
        "No release of Apache Kafka has kip-966: Eligible Leader Replicas are in 4.0 (preview), 4.1 and later, Unclean"
        " Recovery is in none. The generation kip-966-elr is what 4.1 and later run.",
        installable=False,
    ),
}
"""By the names of the generations."""
