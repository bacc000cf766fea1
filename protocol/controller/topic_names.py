"""Kafka's rules for the names of topics.

A name has 1 to 249 characters out of ASCII letters, digits, `.`, `_` and `-`, and is neither `.` nor `..`, because
directories are named after topics. Since metrics write `_` for `.`, two names that differ only there collide.
`__cluster_metadata` is the name of the metadata log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

CLUSTER_METADATA_TOPIC = "__cluster_metadata"
MAX_NAME_LENGTH = 249
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def name_error(name: str) -> str | None:
    """Why a topic may not have this name; None if it may."""
    if not name:
        return "a topic's name is not empty"
    if name in (".", ".."):
        return "a topic is not called '.' or '..'"
    if len(name) > MAX_NAME_LENGTH:
        return f"a topic's name has at most {MAX_NAME_LENGTH} characters, not {len(name)}"
    if _LEGAL.fullmatch(name) is None:
        return f"{name!r}: a topic's name consists of ASCII letters, digits, '.', '_' and '-'"
    return None


def may_collide(name: str) -> bool:
    """Whether the name has a character by which it can collide with another name."""
    return "." in name or "_" in name


def collision_key(name: str) -> str:
    """Equal for names that collide."""
    return name.replace(".", "_")


def collision_index(names: Iterable[str]) -> Mapping[str, str]:
    """The first of the names under its collision key, for those that may collide."""
    index: dict[str, str] = {}
    for name in names:
        if may_collide(name):
            index.setdefault(collision_key(name), name)
    return index
