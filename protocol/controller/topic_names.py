"""Kafka's rules for the names of topics.

Directories are named after topics, so a name is neither `.` nor `..`. Since metrics write `_` for `.`, two names that
differ only there collide. `__cluster_metadata` is the name of the metadata log.
"""

from __future__ import annotations

import re

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
