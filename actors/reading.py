"""Reads what a running cluster has on its disks, a part at a time: logs as runs of records, and the metadata log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import cast

import ray
from ray.exceptions import GetTimeoutError

from actors.caller_log import Run
from actors.cluster import COMMAND_TIMEOUT_S, ActorCluster
from actors.failures import NodeNotRunningError
from actors.members import ACTOR_GONE
from protocol.ids import NodeId, Offset, TopicPartition
from protocol.messages.metadata_batch import unpack_records
from protocol.messages.records import MetadataRecord

PAGE_BYTES = 8 * 1024 * 1024
"""Bytes of a log that are read at once."""
READ_FAILURES = (*ACTOR_GONE, GetTimeoutError, NodeNotRunningError)
"""The errors of a read from a node that has ended or does not answer."""


def runs(cluster: ActorCluster, node: NodeId, partition: TopicPartition, page_bytes: int = PAGE_BYTES) -> Iterator[Run]:
    """The records of a running broker's replica, read as they are iterated; one of `READ_FAILURES` where it ends."""
    begin: Offset = 0
    while True:
        call = cluster.actor(node).read_runs.remote(partition, begin, page_bytes)
        page = cast("list[Run]", ray.get(call, timeout=COMMAND_TIMEOUT_S))
        if not page:
            return
        yield from page
        offset, _, _, _, count = page[-1]
        begin = offset + count


def new_metadata(cluster: ActorCluster, begin: Offset, wait_s: float) -> list[MetadataRecord]:
    """The committed records of the metadata log from `begin` on, of the active controller; none where none answers in
    time, or its log begins later.
    """
    active = cluster.active_controller()
    with suppress(*READ_FAILURES):  # the next one reads them
        if active is not None:
            return list(unpack_records(ray.get(cluster.actor(active).read_metadata.remote(begin), timeout=wait_s)))
    return []
