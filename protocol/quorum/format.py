"""Formatting: what the disk of a controller holds before its first start (KIP-853, D31).

Unless the voters are static, the log itself must contain the initial voters. A disk is formatted with one of:

    one voter             itself; the other controllers start as observers and are added by AddVoter requests
    several voters        the same list on the disk of each of them; no controller has to be added
    no voters             a joining controller: its disk has a uuid, with which it can be added, and no log

Formatting assigns the uuid before the node runs for the first time, so that the list of voters can name it. A joining
controller may also start on an empty disk; it then generates its uuid at the first start.
"""

from __future__ import annotations

from protocol.contract import Storage
from protocol.errors import ForeignDirectoryError, ProtocolInvariantError
from protocol.ids import METADATA_LOG, TimeMs
from protocol.messages.batch import RecordBatch
from protocol.messages.metadata_batch import pack_records
from protocol.quorum import state_file
from protocol.quorum.log import SNAPSHOT_FILE
from protocol.quorum.state_file import QuorumState
from protocol.quorum.voters import NO_UUID, ReplicaKey, VoterSet


def is_formatted(storage: Storage) -> bool:
    files = (storage.read_file(name) for name in (state_file.FILE, SNAPSHOT_FILE))
    return any(raw is not None for raw in files) or METADATA_LOG in storage.log_names()


def format_voters(storage: Storage, cluster_id: str, me: ReplicaKey, voters: VoterSet, now_ms: TimeMs) -> None:
    """Formats a disk for the replica `me`, with `voters` as the first records of its log. ForeignDirectoryError if it
    is formatted, ProtocolInvariantError if `me` has no uuid or is not among the voters.
    """
    if is_formatted(storage):
        raise ForeignDirectoryError(f"the disk of replica {me.id} is formatted already")
    if me.uuid == NO_UUID or (len(voters) and me not in voters):
        raise ProtocolInvariantError(f"replica {me} is not among the voters {', '.join(map(str, voters.keys))}")
    if len(voters):
        records = voters.to_records()
        log = storage.open_log(METADATA_LOG)
        payload = pack_records(records)
        log.append(RecordBatch(leader_epoch=0, record_count=len(records), payload=payload, timestamp_ms=now_ms))
        log.flush()
    storage.write_file(state_file.FILE, state_file.encode(QuorumState(cluster_id, me.uuid)))
