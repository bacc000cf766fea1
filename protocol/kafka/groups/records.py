"""The records of `__consumer_offsets`: committed offsets, and the members of groups with their assignments.

Keys and values have Kafka's layouts (big endian, strings with two bytes of length), so that tools that print the topic
can read them: key version 1 with value version 3 for a committed offset, key version 2 with value version 3 for a
group. A key without a value deletes what earlier records of the key have set.

The coordinator of a group is the leader of the partition that the hash of the group's id names, the one that Java
computes for a string.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

OFFSETS_TOPIC = "__consumer_offsets"
_OFFSET_KEY = 1
_GROUP_KEY = 2
_VALUE = 3
NO_TEXT = -1


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A committed offset of a partition: the next one that the group reads."""

    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int


@dataclass(frozen=True, slots=True)
class StoredMember:
    """A member of a group as it is stored; times in ms."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A generation of a group."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    members: tuple[StoredMember, ...] = ()


@dataclass(frozen=True, slots=True)
class OffsetKey:
    group: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class GroupKey:
    group: str


def partition_of(group: str, partitions: int) -> int:
    """The partition of `__consumer_offsets` that has a group's records."""
    number = 0
    for unit in struct.unpack(f"<{len(group.encode('utf-16-le')) // 2}H", group.encode("utf-16-le")):
        number = (31 * number + unit) & 0xFFFFFFFF
    return (number & 0x7FFFFFFF) % partitions


def offset_record(key: OffsetKey, value: CommittedOffset | None) -> tuple[bytes, bytes | None]:
    """(key, value) of a committed offset, or of its deletion."""
    encoded = struct.pack(">h", _OFFSET_KEY) + _text(key.group) + _text(key.topic) + struct.pack(">i", key.partition)
    if value is None:
        return encoded, None
    head = struct.pack(">hqi", _VALUE, value.offset, value.leader_epoch)
    return encoded, head + _text(value.metadata) + struct.pack(">q", value.committed_ms)


def group_record(group: str, value: StoredGroup | None, now_ms: int) -> tuple[bytes, bytes | None]:
    """(key, value) of a generation of a group, or of the group's deletion."""
    key = struct.pack(">h", _GROUP_KEY) + _text(group)
    if value is None:
        return key, None
    parts = [
        struct.pack(">h", _VALUE),
        _text(value.protocol_type),
        struct.pack(">i", value.generation),
        _text(value.protocol),
        _text(value.leader),
        struct.pack(">qi", now_ms, len(value.members)),
    ]
    for member in value.members:
        parts += [
            _text(member.member_id),
            _text(member.instance_id),
            _text(member.client_id),
            _text(member.client_host),
            struct.pack(">ii", member.rebalance_timeout_ms, member.session_timeout_ms),
            _bytes(member.subscription),
            _bytes(member.assignment),
        ]
    return key, b"".join(parts)


def read_record(
    key: bytes | None, value: bytes | None
) -> tuple[OffsetKey, CommittedOffset | None] | tuple[GroupKey, StoredGroup | None] | None:
    """What a record says; None for one of a version that this coordinator does not write. ValueError for one that is
    not what its version says.
    """
    if key is None or len(key) < 2:
        return None
    reader = _Reader(key)
    kind = reader.int16()
    if kind == _OFFSET_KEY:
        return OffsetKey(reader.string() or "", reader.string() or "", reader.int32()), _offset(value)
    if kind == _GROUP_KEY:
        return GroupKey(reader.string() or ""), _group(value)
    return None


def _offset(value: bytes | None) -> CommittedOffset | None:
    if value is None:
        return None
    reader = _Reader(value)
    reader.int16()
    return CommittedOffset(reader.int64(), reader.int32(), reader.string() or "", reader.int64())


def _group(value: bytes | None) -> StoredGroup | None:
    if value is None:
        return None
    reader = _Reader(value)
    reader.int16()
    protocol_type, generation, protocol, leader = reader.string(), reader.int32(), reader.string(), reader.string()
    reader.int64()
    members = []
    for _ in range(reader.int32()):
        texts = [reader.string() for _ in range(4)]
        timeouts = reader.int32(), reader.int32()
        members.append(
            StoredMember(
                texts[0] or "", texts[1], texts[2] or "", texts[3] or "", *timeouts, reader.blob(), reader.blob()
            )
        )
    return StoredGroup(protocol_type or "", generation, protocol, leader, tuple(members))


def _text(text: str | None) -> bytes:
    if text is None:
        return struct.pack(">h", NO_TEXT)
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def _bytes(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


class _Reader:
    """Reads fields one after another."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 0

    def int16(self) -> int:
        return self._number(">h", 2)

    def int32(self) -> int:
        return self._number(">i", 4)

    def int64(self) -> int:
        return self._number(">q", 8)

    def string(self) -> str | None:
        length = self.int16()
        return None if length < 0 else self._take(length).decode()

    def blob(self) -> bytes:
        return self._take(self.int32())

    def _number(self, form: str, size: int) -> int:
        (number,) = struct.unpack(form, self._take(size))
        return int(number)

    def _take(self, size: int) -> bytes:
        if not 0 <= size <= len(self._data) - self._place:
            raise ValueError(f"found a field of {size} bytes; {len(self._data) - self._place} are left")
        self._place += size
        return self._data[self._place - size : self._place]
