"""The `quorum-state` file with the durable election state of a replica; and formatting, which writes the first one.

The file holds the current epoch, the leader of that epoch, and the candidate that the replica voted for in it. A
replica that lost its vote could vote twice in an epoch, which could elect two leaders. Version 1 adds the uuid of the
replica's own disk and of the candidate's (N17). A file of version 0 is accepted; the replica then generates the missing
uuid once and rewrites the file (D5).

Formatting is what prepares the disk of a controller before its first start (KIP-853, D31), so that the list of initial
voters, which the log itself must contain unless they are static, can name its uuid. A disk is formatted with one of:

    one voter             itself; the other controllers start as observers and are added by AddVoter requests
    several voters        the same list on the disk of each of them; no controller has to be added
    no voters             a joining controller: its disk has a uuid, with which it can be added, and no log

A joining controller may also start on an empty disk; it then generates its uuid at the first start.
"""

from __future__ import annotations

import json
from functools import lru_cache
from random import Random

from protocol.contract import Storage
from protocol.errors import CorruptLogError, ForeignDirectoryError, ProtocolInvariantError
from protocol.ids import METADATA_LOG, NO_EPOCH, NO_LEADER, UUID_BITS, Epoch, NodeId, TimeMs, uuid_text
from protocol.messages.batch import RecordBatch
from protocol.messages.metadata_batch import pack_records
from protocol.quorum.log import SNAPSHOT_FILE
from protocol.quorum.voters import NO_UUID, ReplicaKey, VoterSet
from protocol.values import immutable

FILE = "quorum-state"
VERSION = 1


@immutable
class QuorumState:
    """The file: `uuid` of the own disk, `leader` of `epoch` (-1: unknown), and the vote in `epoch` (None: no vote)."""

    cluster_id: str
    uuid: str
    epoch: Epoch = 0
    leader: NodeId = NO_LEADER
    voted: ReplicaKey | None = None


def disk_uuid(rng: Random) -> str:
    return uuid_text(rng.getrandbits(UUID_BITS))


@lru_cache(maxsize=64)
def encode(state: QuorumState) -> bytes:
    voted = state.voted or ReplicaKey(-1, NO_UUID)
    document = {
        "clusterId": state.cluster_id,
        "voterUuid": state.uuid,
        "leaderId": state.leader,
        "leaderEpoch": state.epoch,
        "votedId": voted.id,
        "votedUuid": voted.uuid,
        "data_version": VERSION,
    }
    return json.dumps(document, indent=1).encode()


@lru_cache(maxsize=64)
def decode(data: bytes) -> QuorumState:
    """Parses the file; `uuid` is empty for version 0. CorruptLogError. A restarted broker reads the same file again."""
    try:
        document = json.loads(data)
        version = document["data_version"]
        if version not in (0, VERSION):
            raise CorruptLogError(f"{FILE}: data_version: found {version}; allowed: 0 and {VERSION}")
        numbers = {name: document.get(name, -1) for name in ("leaderId", "leaderEpoch", "votedId")}
        words = {name: document.get(name) or NO_UUID for name in ("clusterId", "voterUuid", "votedUuid")}
        if not all(type(value) is int for value in numbers.values()):
            raise CorruptLogError(f"{FILE}: found {numbers}; allowed: whole numbers")
        if not all(type(value) is str for value in words.values()):
            raise CorruptLogError(f"{FILE}: found {words}; allowed: texts")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptLogError(f"{FILE}: found {data[:40]!r}; allowed: a JSON object with data_version") from error
    voted = ReplicaKey(numbers["votedId"], words["votedUuid"]) if numbers["votedId"] >= 0 else None
    epoch = max(numbers["leaderEpoch"], 0)
    if numbers["leaderEpoch"] < NO_EPOCH:
        raise CorruptLogError(f"{FILE}: leaderEpoch: found {numbers['leaderEpoch']}; allowed: from {NO_EPOCH}")
    return QuorumState(words["clusterId"], words["voterUuid"], epoch, numbers["leaderId"], voted)


def is_formatted(storage: Storage) -> bool:
    files = (storage.read_file(name) for name in (FILE, SNAPSHOT_FILE))
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
    storage.write_file(FILE, encode(QuorumState(cluster_id, me.uuid)))
