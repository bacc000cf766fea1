"""Feature levels, and protocol generations as sets of switches.

Protocol code tests `Features`, never generations. The levels of a cluster's features decide which switches are on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache

from protocol.errors import ProtocolInvariantError
from protocol.kafka_release import GENERATION_RELEASES
from protocol.values import direct


@direct
class Generation(Enum):
    """The protocol generations (docs/architecture.md), each with the feature levels at which its clusters start."""

    V3 = "v3"
    KIP_497 = "kip-497"
    KIP_966_ELR = "kip-966-elr"
    KIP_966 = "kip-966"

    @property
    def feature_levels(self) -> Mapping[str, int]:
        """The levels at which a cluster of this generation starts."""
        return _LEVELS[self]

    @property
    def features(self) -> Features:
        """The switches at these levels."""
        return _FEATURES[self]


RELEASED = tuple(each for each in Generation if GENERATION_RELEASES[each.value].installable)
"""The generations that releases of Kafka run, without and with ELR."""
LOG_GENERATIONS = (Generation.KIP_497, Generation.KIP_966_ELR, Generation.KIP_966)
"""The generations with a metadata log and a quorum of controllers."""


@dataclass(frozen=True, slots=True)
class Features:
    """Switches of protocol rules; the source of each rule is given with it."""

    elr: bool = False
    """The controller keeps eligible leader replicas and elects from them; the ISR may become empty (E12-E31)."""
    effective_min_isr: bool = False
    """The effective min ISR is limited by the number of replicas (E8)."""
    high_watermark_needs_min_isr: bool = False
    """The high watermark advances only while the committed ISR has min ISR members (E1-E4)."""
    last_known_leader_in_elr: bool = False
    """As in Kafka's first phase, `last_known_elr` holds the last known leader, which is elected from there (K5)."""
    track_last_known_leader: bool = False
    """A field of its own records the last known leader (E24, N15)."""
    unclean_recovery: bool = False
    """Unclean recovery by strategy replaces unclean elections (F1-F4, F25)."""
    metadata_in_store: bool = False
    """The metadata are in a store, and a broker is the controller (A1-A9, N2)."""
    truncates_to_high_watermark: bool = False
    """A new follower truncates its log to its own high watermark, instead of by leader epoch (A27, N1)."""
    admits_lagging_followers: bool = False
    """The ISR admits a follower that has not reached the high watermark (A45, N5)."""
    high_watermark_moves_back: bool = False
    """The high watermark is the smallest log end of the ISR, also if that is lower than before (A42, N6)."""


METADATA_VERSION = "metadata.version"
UNCLEAN_RECOVERY_ENABLED = "unclean.recovery.enabled"
METADATA_VERSION_ELR = 2
METADATA_VERSION_REGISTRATIONS = 3
SUPPORTED_FEATURES: Mapping[str, tuple[int, int]] = {METADATA_VERSION: (1, 3), UNCLEAN_RECOVERY_ENABLED: (0, 1)}
"""The lowest and highest supported level of each feature. `metadata.version` 1 is before KIP-966; 2 adds the ELR,
clean-shutdown epochs and empty ISRs (K2-K4, K7); with 3, at which no cluster starts, controllers register (KIP-919)
and can be unregistered (KIP-1312). `unclean.recovery.enabled` is KIP-966's flag (K8, N24).
"""


def record_version(levels: Mapping[str, int]) -> int:
    """The version of metadata records under these feature levels: 0 has no ELR fields (G34, K11)."""
    return int(levels[METADATA_VERSION] >= METADATA_VERSION_ELR)


def controllers_register(levels: Mapping[str, int]) -> bool:
    """Whether the metadata have registrations of controllers; all other rules are those of the level below."""
    return levels[METADATA_VERSION] >= METADATA_VERSION_REGISTRATIONS


def features_at(levels: Mapping[str, int]) -> Features:
    """The switches of finalized feature levels. Raises ProtocolInvariantError for unsupported levels."""
    return _features_at(tuple(levels.items()))


@cache
def _features_at(items: tuple[tuple[str, int], ...]) -> Features:
    levels = dict(items)
    if levels == _LEVELS[Generation.V3]:
        return Features(
            metadata_in_store=True,
            truncates_to_high_watermark=True,
            admits_lagging_followers=True,
            high_watermark_moves_back=True,
        )
    for name, level in items:
        lowest, highest = SUPPORTED_FEATURES.get(name, (0, -1))
        if not lowest <= level <= highest:
            raise ProtocolInvariantError(f"feature {name!r} is not supported at level {level}")
    if levels[METADATA_VERSION] < METADATA_VERSION_ELR:
        return Features()
    if levels[UNCLEAN_RECOVERY_ENABLED]:
        return Features(True, True, True, track_last_known_leader=True, unclean_recovery=True)
    return Features(True, True, True, last_known_leader_in_elr=True)


_LEVELS: Mapping[Generation, Mapping[str, int]] = {
    Generation.V3: {METADATA_VERSION: 0, UNCLEAN_RECOVERY_ENABLED: 0},  # no metadata log whose level could be changed
    Generation.KIP_497: {METADATA_VERSION: 1, UNCLEAN_RECOVERY_ENABLED: 0},
    Generation.KIP_966_ELR: {METADATA_VERSION: METADATA_VERSION_ELR, UNCLEAN_RECOVERY_ENABLED: 0},
    Generation.KIP_966: {METADATA_VERSION: METADATA_VERSION_ELR, UNCLEAN_RECOVERY_ENABLED: 1},
}
_FEATURES = {generation: features_at(levels) for generation, levels in _LEVELS.items()}
