"""All messages and metadata records. Importing the package registers their types for `codec.decode`."""

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
    store,
    topics,
    v3,
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
    "store",
    "topics",
    "v3",
]
