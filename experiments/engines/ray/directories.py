"""Formats and describes the directories of nodes, for `isray storage`. Describing reads without the lock."""

from __future__ import annotations

from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

from actors.clock import UnixTime
from actors.log.dump import FoundBatch
from actors.log.files import typed_errors
from actors.storage import DiskStorage, Owner, check_owner, read_meta
from experiments.engines.ray.dump import log_files, log_names, metadata_batches, records_of, snapshot_file
from protocol.contract import Storage
from protocol.errors import CorruptLogError
from protocol.ids import NodeId
from protocol.messages.quorum import ControlRecord
from protocol.quorum import state_file
from protocol.quorum.log import decode_snapshot
from protocol.quorum.state_file import format_voters, is_formatted
from protocol.quorum.voters import ReplicaKey, VoterSet

Document = dict[str, Any]
"""A JSON object."""


def open_storage(directory: Path) -> AbstractContextManager[Storage]:
    """The storage in a directory of any owner for a block, created if missing. StorageError where that cannot be."""
    return closing(DiskStorage(directory))


def format_directory(
    directory: Path, cluster_id: str, node_id: NodeId, own_key: ReplicaKey | None, voters: VoterSet
) -> bool:
    """Formats a directory for a node; for a controller with its own key and the first voters. Returns False where it is
    formatted for this node already. StorageError where it belongs to another node, is in use, or cannot be written.
    """
    owner = Owner(cluster_id, node_id)
    if check_owner(directory, owner) and own_key is None:
        return False
    with closing(DiskStorage(directory, owner)) as storage:
        if own_key is None:
            return True
        if is_formatted(storage):
            return False
        format_voters(storage, cluster_id, own_key, voters, UnixTime().now_ms())
        return True


def owner_of(directory: Path) -> tuple[str, NodeId] | None:
    """(cluster id, node id) of a directory, None if not formatted. StorageError where it is no node's directory."""
    meta = read_meta(directory)
    return None if meta is None else (meta.cluster_id, meta.node_id)


def describe_directory(directory: Path) -> Document | None:
    """The JSON document of `isray storage info`: owner, quorum state, voters, logs, and `faults`, the parts that cannot
    be read. None where the directory is not formatted; StorageError where it is not the directory of a node.
    """
    meta = read_meta(directory)
    if meta is None:
        return None
    faults: list[str] = []
    found: Document = {"directory": str(directory)} | meta.model_dump(mode="json")
    try:
        found |= _quorum_state(directory)
        found["voters"] = [{"voter_id": key.id, "voter_uuid": key.uuid} for key in _voters(directory).keys]
    except CorruptLogError as error:
        faults.append(str(error))
    logs = [log_files(directory, name) for name in log_names(directory)]
    with typed_errors(directory):
        found["logs"] = [
            {
                "log": log.name,
                "start_offset": log.start_offset,
                "flushed_offset": log.flushed_offset,
                "size": sum(path.stat().st_size for path in log.segments),
            }
            for log in logs
        ]
    return found | {"faults": [*faults, *(log.fault for log in logs if log.fault)]}


def _quorum_state(directory: Path) -> Document:
    """The durable quorum state of a controller, empty for other nodes. CorruptLogError where it cannot be read."""
    path = directory / state_file.FILE
    with typed_errors(path):
        if not path.exists():
            return {}
        state = state_file.decode(path.read_bytes())
    voted = None if state.voted is None else {"voter_id": state.voted.id, "voter_uuid": state.voted.uuid}
    epoch = {"leader_id": state.leader, "leader_epoch": state.epoch, "voted": voted}
    return {"directory_id": state.uuid, "quorum_cluster_id": state.cluster_id} | epoch


def _voters(directory: Path) -> VoterSet:
    """The voters by snapshot and metadata log. CorruptLogError where the snapshot cannot be read."""
    voters, covered = VoterSet(), 0
    path = snapshot_file(directory)
    if path is not None:
        with typed_errors(path):
            snapshot = decode_snapshot(path.read_bytes())
        voters, covered = snapshot.voters, snapshot.end_offset
    for found in metadata_batches(directory):
        if not isinstance(found, FoundBatch) or found.fault:
            return voters
        for offset, record in enumerate(records_of(found), found.batch.base_offset):
            if offset >= covered and isinstance(record, ControlRecord):
                voters = voters.after(record)
    return voters
