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
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

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
_ABORTED = 25
"""The kind of the record that ends a transaction of the metadata log whose records do not count."""


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

    def field(self, form: str) -> Any:
        """A field: `?` and numbers in the form of `struct`; `u` a uuid; `s` a text or null; `n` an array of `i`; `U` of
        `u`; `E` of endpoints and `F` of features, which are passed over.
        """
        match form:
            case "u":
                return base64.urlsafe_b64encode(self.take(16)).decode().rstrip("=")
            case "s":
                length = self.unsigned()
                return None if length == 0 else self.take(length - 1).decode()
            case "n" | "U" | "E" | "F":
                return tuple(self.fields(_ITEMS[form])[0] for _ in range(self.unsigned() - 1))
            case "t":
                return self.tagged()
        (found,) = struct.unpack(f">{form}", self.take(struct.calcsize(form)))
        return found

    def fields(self, layout: str) -> list[Any]:
        """The fields of a layout, a letter each."""
        return [self.field(form) for form in layout]

    def tagged(self) -> dict[int, Reader]:
        """The tagged fields by their tags."""
        found = {}
        for _ in range(self.unsigned()):
            tag, size = self.unsigned(), self.unsigned()
            found[tag] = Reader(self.take(size))
        return found


_ITEMS = {"n": "i", "U": "u", "E": "ssHht", "F": "shht"}
Tagged = Mapping[int, Reader]


def _numbers(tagged: Tagged, tag: int) -> tuple[int, ...] | None:
    """A tagged field that is an array of numbers, None where there is none."""
    return tagged[tag].field("n") if tag in tagged else None


def _number(tagged: Tagged, tag: int, form: str, default: int) -> int:
    return int(tagged[tag].field(form)) if tag in tagged else default


class Translator:
    """Translates the records of one log, in their order. `image` is that of all records translated before, which are
    replayed one by one. `aliases` are the names here of configs that brokers have under other names than topics.
    """

    def __init__(self, image: MetadataImage, aliases: Mapping[str, str]) -> None:
        self._image, self._aliases = image, aliases
        self._epochs: dict[int, int] = {}

    def records(self, value: bytes) -> Sequence[MetadataRecord]:
        """What a record of Kafka's is here. ProtocolInvariantError for one that Kafka 4.0 to 4.4 do not write."""
        fields = Reader(value)
        try:
            if (frame := fields.unsigned()) != FRAME_VERSION:
                raise ProtocolInvariantError(f"found version {frame} of a frame of metadata; allowed: {FRAME_VERSION}")
            kind, version = fields.unsigned(), fields.unsigned()
            if kind == _ABORTED:
                raise ProtocolInvariantError("a transaction of the metadata log was aborted, which is not read")
            if kind not in _KINDS:
                return ()
            layouts, translate = _KINDS[kind]
            found = fields.fields(layouts[min(version, len(layouts) - 1)])
            records = list(translate(self, fields.tagged(), *found))
        except (LookupError, ValueError, struct.error) as error:
            raise ProtocolInvariantError(f"a metadata record that cannot be read ({error!r}): {value.hex()}") from error
        if not fields.is_at_end:
            raise ProtocolInvariantError(f"version {version} of metadata record {kind} has fields that are not known")
        return records

    def _clear_elr(self, tagged: Tagged, name: str) -> Iterator[MetadataRecord]:
        topic = self._image.topic_named(name) if name else None
        for key, state in list(self._image.partitions(None if topic is None else topic.topic_id)):
            if state.elr or state.last_known_elr:
                yield PartitionChangeRecord(
                    topic_id=key.topic_id, partition_id=key.partition, eligible_leader_replicas=(), last_known_elr=()
                )

    def _topic(self, tagged: Tagged, name: str, topic_id: str) -> Iterator[MetadataRecord]:
        yield TopicRecord(name=name, topic_id=topic_id)

    def _config(
        self, tagged: Tagged, resource: int, name: str, config: str, value: str | None
    ) -> Iterator[MetadataRecord]:
        own = config if resource == _TOPIC else self._aliases.get(config, config)
        if own in CONFIGS and (resource == _TOPIC or (resource == _BROKER and not name)):
            topic_id = self._image.topic_ids[name] if resource == _TOPIC else None
            yield ConfigRecord(topic_id=topic_id, name=own, value=value)

    def _register_broker(self, tagged: Tagged, broker: int, *fields: Any) -> Iterator[MetadataRecord]:
        """From version 2 on a field says whether the broker is on its way from ZooKeeper."""
        *_, incarnation, epoch, _, _, rack, fenced, shutting_down = fields
        self._epochs[epoch] = self._image.next_offset
        yield RegisterBrokerRecord(
            broker_id=broker,
            broker_epoch=self._epochs[epoch],
            incarnation_id=incarnation,
            fenced=fenced,
            in_controlled_shutdown=shutting_down,
            rack=rack,
        )

    def _change_registration(self, tagged: Tagged, broker: int, epoch: int) -> Iterator[MetadataRecord]:
        yield BrokerRegistrationChangeRecord(
            broker_id=broker,
            broker_epoch=self._epochs[epoch],
            fenced={1: True, -1: False}.get(_number(tagged, 0, "b", 0)),
            in_controlled_shutdown=True if _number(tagged, 1, "b", 0) == 1 else None,
        )

    def _unregister_broker(self, tagged: Tagged, broker: int, epoch: int) -> Iterator[MetadataRecord]:
        yield UnregisterBrokerRecord(broker_id=broker, broker_epoch=self._epochs[epoch])

    def _partition(self, tagged: Tagged, index: int, topic_id: str, *fields: Any) -> Iterator[MetadataRecord]:
        """From version 1 on the last field has the directories of the replicas."""
        replicas, isr, removing, adding, leader, leader_epoch, partition_epoch, *_ = fields
        yield PartitionRecord(
            topic_id=topic_id,
            partition_id=index,
            replicas=replicas,
            isr=isr,
            removing_replicas=removing,
            adding_replicas=adding,
            leader=leader,
            leader_recovery_state=_number(tagged, 0, "b", 0),
            leader_epoch=leader_epoch,
            partition_epoch=partition_epoch,
            eligible_leader_replicas=_numbers(tagged, 1) or (),
            last_known_elr=_numbers(tagged, 2) or (),
        )

    def _change_partition(self, tagged: Tagged, index: int, topic_id: str) -> Iterator[MetadataRecord]:
        yield PartitionChangeRecord(
            topic_id=topic_id,
            partition_id=index,
            isr=_numbers(tagged, 0),
            leader=_number(tagged, 1, "i", UNCHANGED_LEADER),
            replicas=_numbers(tagged, 2),
            removing_replicas=_numbers(tagged, 3),
            adding_replicas=_numbers(tagged, 4),
            leader_recovery_state=_number(tagged, 5, "b", UNCHANGED_RECOVERY_STATE),
            eligible_leader_replicas=_numbers(tagged, 6),
            last_known_elr=_numbers(tagged, 7),
        )

    def _remove_topic(self, tagged: Tagged, topic_id: str) -> Iterator[MetadataRecord]:
        yield RemoveTopicRecord(topic_id=topic_id)

    def _feature_level(self, tagged: Tagged, name: str, level: int) -> Iterator[MetadataRecord]:
        if name == ELR_VERSION:
            yield FeatureLevelRecord(name=METADATA_VERSION, feature_level=METADATA_VERSION_ELR if level else 1)

    def _producer_ids(self, tagged: Tagged, broker: int, epoch: int, following: int) -> Iterator[MetadataRecord]:
        yield ProducerIdsRecord(next_producer_id=following)

    def _register_controller(
        self, tagged: Tagged, controller: int, incarnation: str, *_: Any
    ) -> Iterator[MetadataRecord]:
        yield RegisterControllerRecord(controller_id=controller, incarnation_id=incarnation)

    def _unregister_controller(self, tagged: Tagged, controller: int) -> Iterator[MetadataRecord]:
        yield UnregisterControllerRecord(controller_id=controller)


def leader_of(value: bytes) -> int:
    """The leader in the value of the control record that begins its epoch."""
    return int(Reader(value[2:]).field("i"))


def voters_of(value: bytes) -> tuple[ReplicaKey, ...]:
    """The voters in the value of a control record about them (KIP-853), whatever its version: each with its endpoints,
    and the supported levels of kraft.version.
    """
    fields = Reader(value[2:])

    def voter() -> ReplicaKey:
        key = ReplicaKey(*fields.fields("iu"))
        for _ in range(fields.unsigned() - 1):
            fields.fields("ssHt")
        fields.fields("hhtt")
        return key

    return tuple(voter() for _ in range(fields.unsigned() - 1))


_KINDS: Mapping[int, tuple[Sequence[str], Callable[..., Iterator[MetadataRecord]]]] = {
    0: (("iuqEFs?", "iuqEFs??", "i?uqEFs??"), Translator._register_broker),
    1: (("iq",), Translator._unregister_broker),
    2: (("su",), Translator._topic),
    3: (("iunnnniii", "iunnnniiiU"), Translator._partition),
    4: (("bsss",), Translator._config),
    5: (("iu",), Translator._change_partition),
    9: (("u",), Translator._remove_topic),
    12: (("sh",), Translator._feature_level),
    15: (("iqq",), Translator._producer_ids),
    17: (("iq",), Translator._change_registration),
    27: (("iu?EF",), Translator._register_controller),
    28: (("s",), Translator._clear_elr),
    29: (("i",), Translator._unregister_controller),
}
"""By the number of the kind (Kafka's `apiKey` of the record): the fields by version, the last ones for later versions
too, and what becomes of them.
"""
