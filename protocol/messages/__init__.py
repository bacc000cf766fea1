"""Every message and record of the protocol, and the codec.

Importing this package registers all message types, so that `codec.decode` knows them.
"""

from __future__ import annotations

from protocol.messages import (
    acls,
    admin,
    batch,
    cluster,
    commands,
    configs,
    control,
    data,
    load,
    partitions,
    producers,
    quorum,
    records,
    recovery,
    topics,
)

__all__ = [
    "acls",
    "admin",
    "batch",
    "cluster",
    "commands",
    "configs",
    "control",
    "data",
    "load",
    "partitions",
    "producers",
    "quorum",
    "records",
    "recovery",
    "topics",
]
