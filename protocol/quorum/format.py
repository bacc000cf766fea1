"""Formatting: what the disk of a controller holds before its first start (D31).

Where the voters are not static, the log itself must say who the first of them are. There are three ways to begin:

    one voter             its disk is formatted with itself as the one voter; the others join as observers and are added
    several               each of their disks is formatted with the same list of all of them: nobody has to be added
    none                  a controller that joins: its disk has a uuid, by which it can be added, and no log

The disk that is formatted has a uuid before its node has ever run, so that a list can name it. A controller that joins
may as well begin on an empty disk: it gives itself a uuid at its first start.
"""

from __future__ import annotations

from random import Random

from protocol.contract import Storage
from protocol.errors import ForeignDirectoryError, ProtocolInvariantError
from protocol.ids import METADATA_LOG
from protocol.messages.batch import RecordBatch
from protocol.messages.metadata_batch import pack_records
from protocol.quorum import state_file
from protocol.quorum.log import SNAPSHOT_FILE
from protocol.quorum.state_file import QuorumState
from protocol.quorum.voters import NO_UUID, ReplicaKey, VoterSet


def is_formatted(storage: Storage) -> bool:
    """Whether a disk holds anything of a replica of the metadata log."""
    files = (storage.read_file(name) for name in (state_file.FILE, SNAPSHOT_FILE))
    return any(raw is not None for raw in files) or METADATA_LOG in storage.log_names()


def format_voters(storage: Storage, cluster_id: str, me: ReplicaKey, voters: VoterSet) -> None:
    """Makes this disk that of `me`, in whose log the first voters stand; one that joins has none.
    ForeignDirectoryError where the disk is formatted already, ProtocolInvariantError where `me` has no uuid, or the
    voters are some, and `me` is none of them.
    """
    if is_formatted(storage):
        raise ForeignDirectoryError(f"the disk of replica {me.id} is formatted already")
    if me.uuid == NO_UUID or (len(voters) and me not in voters):
        raise ProtocolInvariantError(f"{me} is to be formatted as one of {', '.join(map(str, voters.keys))}")
    if len(voters):
        records = voters.to_records()
        log = storage.open_log(METADATA_LOG)
        log.append(RecordBatch(base_offset=0, leader_epoch=0, record_count=len(records), payload=pack_records(records)))
        log.flush()
    storage.write_file(state_file.FILE, QuorumState(cluster_id, me.uuid).encode())


def disk_uuid(rng: Random) -> str:
    """A uuid for a disk."""
    return f"{rng.getrandbits(128):032x}"
