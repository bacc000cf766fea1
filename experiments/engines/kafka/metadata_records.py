"""Records of Kafka's metadata log as the records of this project, so that one image replays both.

A value is a frame (KIP-631): the version of the frame (1), the kind of the record and its version as unsigned varints,
then the fields in the compact encoding of Kafka's flexible versions, tagged fields last. The fields are those of Kafka
4.0 to 4.4. A record of a later version may have fields that are not read here: what is left over is an error.

Records without a counterpart (quotas, ACLs, SCRAM, levels of other features) are left out, so the offsets of the
records here are their places in this shorter log. A broker epoch, which is the offset of the broker's registration,
becomes the place of that registration. `eligible.leader.replicas.version` is the level of `metadata.version` here that
has the ELR. Kafka's record that clears the ELRs of a topic, or of all, becomes a change of each of its partitions that
has one.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from protocol.config import CONFIGS
from protocol.errors import ProtocolInvariantError
from protocol.features import METADATA_VERSION, METADATA_VERSION_ELR
from protocol.ids import UNCHANGED_LEADER
from protocol.messages.records import (
    UNCHANGED_RECOVERY_STATE,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnregisterBrokerRecord,
    UnregisterControllerRecord,
)
from protocol.metadata.image import MetadataImage
from protocol.quorum.voters import ReplicaKey

FRAME_VERSION = 1
ELR_VERSION = "eligible.leader.replicas.version"
_TOPIC, _BROKER = 2, 4
"""Types of resources in config records."""
_ABORTED, _CLEAR_ELR = 25, 28
"""Kinds of records: the end of a transaction of the metadata log whose records do not count; cleared ELRs."""
Item = TypeVar("Item")


class Reader:
    """Reads fields of Kafka's compact encoding from bytes, in their order. IndexError or struct.error at the end."""

    def __init__(self, data: bytes) -> None:
        self._data, self._place = data, 0

    @property
    def is_at_end(self) -> bool:
        return self._place == len(self._data)

    def take(self, count: int) -> bytes:
        found = self._data[self._place : self._place + count]
        if len(found) < count:
            raise IndexError(f"{count} bytes wanted, {len(found)} left")
        self._place += count
        return found

    def unsigned(self) -> int:
        """An unsigned varint."""
        number = shift = 0
        while True:
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    def number(self, form: str) -> int:
        """A number in the form of `struct`: `b`, `h`, `i`, `q`, or `H` for a port."""
        (found,) = struct.unpack(f">{form}", self.take(struct.calcsize(form)))
        return int(found)

    def boolean(self) -> bool:
        return self.number("b") != 0

    def uuid(self) -> str:
        return base64.urlsafe_b64encode(self.take(16)).decode().rstrip("=")

    def nullable_text(self) -> str | None:
        length = self.unsigned()
        return None if length == 0 else self.take(length - 1).decode()

    def text(self) -> str:
        found = self.nullable_text()
        if found is None:
            raise ValueError("null in the place of a text")
        return found

    def array(self, item: Callable[[], Item]) -> tuple[Item, ...]:
        return tuple(item() for _ in range(self.unsigned() - 1))

    def numbers(self) -> tuple[int, ...]:
        return self.array(lambda: self.number("i"))

    def tagged(self) -> dict[int, Reader]:
        """The tagged fields by their tags."""
        found = {}
        for _ in range(self.unsigned()):
            tag, size = self.unsigned(), self.unsigned()
            found[tag] = Reader(self.take(size))
        return found


class Translator:
    """Translates the records of one log, in their order. `image` is that of all records translated before, which are
    replayed one by one. `aliases` are the names here of configs that brokers have under other names than topics.
    """

    def __init__(self, image: MetadataImage, aliases: Mapping[str, str]) -> None:
        self._image, self._aliases = image, aliases
        self._epochs: dict[int, int] = {}

    def records(self, value: bytes) -> Iterator[MetadataRecord]:
        """What a record of Kafka's is here. ProtocolInvariantError for one that Kafka 4.0 to 4.4 do not write."""
        fields = Reader(value)
        try:
            if (frame := fields.unsigned()) != FRAME_VERSION:
                raise ProtocolInvariantError(f"found version {frame} of a frame of metadata; allowed: {FRAME_VERSION}")
            kind, version = fields.unsigned(), fields.unsigned()
            if kind == _ABORTED:
                raise ProtocolInvariantError("a transaction of the metadata log was aborted, which is not read")
            read = _READERS.get(kind)
            found = None if read is None else read(self, fields, version)
            if kind == _CLEAR_ELR:
                yield from self._cleared(fields)
        except (LookupError, ValueError, struct.error) as error:
            raise ProtocolInvariantError(f"a metadata record that cannot be read ({error!r}): {value.hex()}") from error
        if (read is not None or kind == _CLEAR_ELR) and not fields.is_at_end:
            raise ProtocolInvariantError(f"version {version} of metadata record {kind} has fields that are not known")
        if found is not None:
            yield found

    def _cleared(self, fields: Reader) -> Iterator[MetadataRecord]:
        name = fields.text()
        fields.tagged()
        topic = self._image.topic_named(name) if name else None
        for key, state in list(self._image.partitions(None if topic is None else topic.topic_id)):
            if state.elr or state.last_known_elr:
                yield PartitionChangeRecord(
                    topic_id=key.topic_id, partition_id=key.partition, eligible_leader_replicas=(), last_known_elr=()
                )

    def _topic(self, fields: Reader, version: int) -> MetadataRecord:
        name, topic_id = fields.text(), fields.uuid()
        fields.tagged()
        return TopicRecord(name=name, topic_id=topic_id)

    def _config(self, fields: Reader, version: int) -> MetadataRecord | None:
        resource, name, config, value = fields.number("b"), fields.text(), fields.text(), fields.nullable_text()
        fields.tagged()
        own = config if resource == _TOPIC else self._aliases.get(config, config)
        if own not in CONFIGS or not (resource == _TOPIC or (resource == _BROKER and not name)):
            return None
        topic_id = self._image.topic_ids[name] if resource == _TOPIC else None
        return ConfigRecord(topic_id=topic_id, name=own, value=value)

    def _register_broker(self, fields: Reader, version: int) -> MetadataRecord:
        broker = fields.number("i")
        if version >= 2:
            fields.boolean()  # whether it is on its way from ZooKeeper
        incarnation, epoch = fields.uuid(), fields.number("q")
        fields.array(lambda: _endpoint(fields))
        fields.array(lambda: _feature(fields))
        rack, fenced = fields.nullable_text(), fields.boolean()
        shutting_down = version >= 1 and fields.boolean()
        fields.tagged()
        self._epochs[epoch] = self._image.next_offset
        return RegisterBrokerRecord(
            broker_id=broker,
            broker_epoch=self._epochs[epoch],
            incarnation_id=incarnation,
            fenced=fenced,
            in_controlled_shutdown=shutting_down,
            rack=rack,
        )

    def _change_registration(self, fields: Reader, version: int) -> MetadataRecord:
        broker, epoch, tagged = fields.number("i"), fields.number("q"), fields.tagged()
        fenced, shutting_down = (tagged[tag].number("b") if tag in tagged else 0 for tag in (0, 1))
        return BrokerRegistrationChangeRecord(
            broker_id=broker,
            broker_epoch=self._epochs[epoch],
            fenced={1: True, -1: False}.get(fenced),
            in_controlled_shutdown=True if shutting_down == 1 else None,
        )

    def _unregister_broker(self, fields: Reader, version: int) -> MetadataRecord:
        broker, epoch = fields.number("i"), fields.number("q")
        fields.tagged()
        return UnregisterBrokerRecord(broker_id=broker, broker_epoch=self._epochs[epoch])

    def _partition(self, fields: Reader, version: int) -> MetadataRecord:
        index, topic_id = fields.number("i"), fields.uuid()
        replicas, isr, removing, adding = (fields.numbers() for _ in range(4))
        leader, leader_epoch, partition_epoch = (fields.number("i") for _ in range(3))
        if version >= 1:
            fields.array(fields.uuid)  # the directories of the replicas
        tagged = fields.tagged()
        return PartitionRecord(
            topic_id=topic_id,
            partition_id=index,
            replicas=replicas,
            isr=isr,
            removing_replicas=removing,
            adding_replicas=adding,
            leader=leader,
            leader_recovery_state=tagged[0].number("b") if 0 in tagged else 0,
            leader_epoch=leader_epoch,
            partition_epoch=partition_epoch,
            eligible_leader_replicas=tagged[1].numbers() if 1 in tagged else (),
            last_known_elr=tagged[2].numbers() if 2 in tagged else (),
        )

    def _change_partition(self, fields: Reader, version: int) -> MetadataRecord:
        index, topic_id, tagged = fields.number("i"), fields.uuid(), fields.tagged()

        def numbers(tag: int) -> tuple[int, ...] | None:
            return tagged[tag].numbers() if tag in tagged else None

        return PartitionChangeRecord(
            topic_id=topic_id,
            partition_id=index,
            isr=numbers(0),
            leader=tagged[1].number("i") if 1 in tagged else UNCHANGED_LEADER,
            replicas=numbers(2),
            removing_replicas=numbers(3),
            adding_replicas=numbers(4),
            leader_recovery_state=tagged[5].number("b") if 5 in tagged else UNCHANGED_RECOVERY_STATE,
            eligible_leader_replicas=numbers(6),
            last_known_elr=numbers(7),
        )

    def _remove_topic(self, fields: Reader, version: int) -> MetadataRecord:
        topic_id = fields.uuid()
        fields.tagged()
        return RemoveTopicRecord(topic_id=topic_id)

    def _feature_level(self, fields: Reader, version: int) -> MetadataRecord | None:
        name, level = fields.text(), fields.number("h")
        fields.tagged()
        if name != ELR_VERSION:
            return None
        return FeatureLevelRecord(name=METADATA_VERSION, feature_level=METADATA_VERSION_ELR if level else 1)

    def _producer_ids(self, fields: Reader, version: int) -> MetadataRecord:
        fields.number("i"), fields.number("q")
        found = ProducerIdsRecord(next_producer_id=fields.number("q"))
        fields.tagged()
        return found

    def _register_controller(self, fields: Reader, version: int) -> MetadataRecord:
        controller, incarnation = fields.number("i"), fields.uuid()
        fields.boolean()  # whether it is ready for a migration from ZooKeeper
        fields.array(lambda: _endpoint(fields))
        fields.array(lambda: _feature(fields))
        fields.tagged()
        return RegisterControllerRecord(controller_id=controller, incarnation_id=incarnation)

    def _unregister_controller(self, fields: Reader, version: int) -> MetadataRecord:
        controller = fields.number("i")
        fields.tagged()
        return UnregisterControllerRecord(controller_id=controller)


def leader_of(value: bytes) -> int:
    """The leader in the value of the control record that begins its epoch."""
    return Reader(value[2:]).number("i")


def voters_of(value: bytes) -> tuple[ReplicaKey, ...]:
    """The voters in the value of a control record about them (KIP-853), whatever its version."""
    fields = Reader(value[2:])

    def voter() -> ReplicaKey:
        key = ReplicaKey(fields.number("i"), fields.uuid())
        fields.array(lambda: (fields.text(), fields.text(), fields.number("H"), fields.tagged()))
        fields.number("h"), fields.number("h"), fields.tagged()  # the supported levels of kraft.version
        fields.tagged()
        return key

    return fields.array(voter)


def _endpoint(fields: Reader) -> None:
    fields.text(), fields.text(), fields.number("H"), fields.number("h"), fields.tagged()


def _feature(fields: Reader) -> None:
    fields.text(), fields.number("h"), fields.number("h"), fields.tagged()


_READERS: Mapping[int, Callable[[Translator, Reader, int], MetadataRecord | None]] = {
    0: Translator._register_broker,
    1: Translator._unregister_broker,
    2: Translator._topic,
    3: Translator._partition,
    4: Translator._config,
    5: Translator._change_partition,
    9: Translator._remove_topic,
    12: Translator._feature_level,
    15: Translator._producer_ids,
    17: Translator._change_registration,
    27: Translator._register_controller,
    29: Translator._unregister_controller,
}
"""By the number of the kind (Kafka's `apiKey` of the record)."""
