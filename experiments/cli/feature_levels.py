"""The levels of features in Kafka's terms, in those of `isray features`.

Kafka turns the ELR on with `eligible.leader.replicas.version`, whose default is 1 since 4.1-IV0. Here level 2 of
`metadata.version` has it. Level 3 has registrations of controllers, which Kafka can remove since 4.4-IV2. No release
of Kafka has `unclean.recovery.enabled`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from experiments.support.errors import InputError
from protocol.config import SHORT_MAX
from protocol.features import (
    METADATA_VERSION,
    METADATA_VERSION_ELR,
    METADATA_VERSION_REGISTRATIONS,
    SUPPORTED_FEATURES,
    Generation,
)

ELR_VERSION = "eligible.leader.replicas.version"
NOT_MODELLED = {
    "group.version": "consumer groups",
    "kraft.version": "levels of the quorum, whose voters are in its log in every cluster",
    "share.version": "share groups",
    "streams.version": "groups of Kafka Streams",
    "transaction.version": "transactions",
}
LAST_VERSIONS = {
    "3.3": 3,
    "3.4": 0,
    "3.5": 2,
    "3.6": 2,
    "3.7": 4,
    "3.8": 0,
    "3.9": 0,
    "4.0": 3,
    "4.1": 1,
    "4.2": 1,
    "4.3": 0,
    "4.4": 2,
}
"""The releases that Kafka's tool takes, oldest first, with the number of the last metadata version of each (`-IV3`)."""
_RELEASES = tuple(LAST_VERSIONS)
_FIRST_WITH_ELR = "4.1"
_FIRST_WITH_UNREGISTRATION = 2
"""The metadata version of the newest release (4.4-IV2) that has UnregisterControllerRecord."""
_VERSION = re.compile(r"(\d\.\d)(?:-IV(\d))?")


def levels_of_release(text: str) -> Mapping[str, int]:
    """The levels of all features by `--release-version`. InputError for a version that Kafka does not have."""
    match = _VERSION.fullmatch(text)
    if match is None or int(match[2] or 0) > LAST_VERSIONS.get(match[1], -1):
        allowed = f"a release or metadata version of Kafka's from {_RELEASES[0]} to {_RELEASES[-1]}: 4.1, 4.1-IV1"
        raise InputError("--release-version", "", text, allowed)
    if match[1] == _RELEASES[-1] and int(match[2] or LAST_VERSIONS[match[1]]) >= _FIRST_WITH_UNREGISTRATION:
        return {**Generation.KIP_966_ELR.feature_levels, METADATA_VERSION: METADATA_VERSION_REGISTRATIONS}
    has_elr = _RELEASES.index(match[1]) >= _RELEASES.index(_FIRST_WITH_ELR)
    return (Generation.KIP_966_ELR if has_elr else Generation.KIP_497).feature_levels


def named_levels(options: Iterable[str]) -> list[tuple[str, int]]:
    """The values NAME=LEVEL of `--feature`, in their order. InputError for another form, or what is not modelled."""
    levels = []
    for text in options:
        feature, _, level = text.partition("=")
        if not feature.strip() or not level.strip().isdecimal() or int(level) > SHORT_MAX:
            raise InputError("--feature", "", text, f"NAME=LEVEL, a level from 0 to {SHORT_MAX}")
        levels.append(_level_here(feature.strip(), int(level)))
    return levels


def _level_here(feature: str, level: int) -> tuple[str, int]:
    if feature in NOT_MODELLED:
        allowed = ", ".join((*SUPPORTED_FEATURES, ELR_VERSION))
        raise InputError("--feature", "", f"{feature}, not modelled: {NOT_MODELLED[feature]}", allowed)
    if feature != ELR_VERSION:
        return feature, level
    if level > 1:
        raise InputError("--feature", "", f"{feature}={level}", f"{ELR_VERSION}=0 | {ELR_VERSION}=1")
    return METADATA_VERSION, METADATA_VERSION_ELR - 1 + level
