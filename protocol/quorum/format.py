"""Formatting: what a disk of the first voter holds before its first start (D31).

The first controller of a cluster without static voters is formatted as the one voter; all others start on empty disks,
find it by the servers that their configuration names, fetch as observers, and are added.
"""

from __future__ import annotations

from collections.abc import Sequence

from protocol.contract import Storage
from protocol.errors import ForeignDirectoryError
from protocol.ids import METADATA_LOG
from protocol.messages.batch import RecordBatch
from protocol.messages.metadata_batch import pack_records
from protocol.messages.quorum import Endpoint
from protocol.messages.records import MetadataRecord
from protocol.quorum import state_file
from protocol.quorum.state_file import QuorumState
from protocol.quorum.voters import ReplicaKey, VoterSet


def format_first_voter(
    storage: Storage, cluster_id: str, key: ReplicaKey, endpoints: tuple[Endpoint, ...] = ()
) -> None:
    """Makes this disk that of the one voter. ForeignDirectoryError where it holds a log or a quorum state already."""
    if storage.read_file(state_file.FILE) is not None or METADATA_LOG in storage.log_names():
        raise ForeignDirectoryError(f"{key} is formatted already")
    records: Sequence[MetadataRecord] = VoterSet().with_voter(key, endpoints).to_records()
    log = storage.open_log(METADATA_LOG)
    log.append(RecordBatch(base_offset=0, leader_epoch=0, record_count=len(records), payload=pack_records(records)))
    log.flush()
    storage.write_file(state_file.FILE, QuorumState(cluster_id, key.uuid).encode())
