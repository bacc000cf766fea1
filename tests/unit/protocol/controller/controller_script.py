"""The commands of transcripts about a controller's state: events of brokers, requests of administrators, and records.

A command that changes something prints its records in one line; in the place of a partition's record is the state that
it leaves, without what is empty. `epochs` are leader epoch and partition epoch. A refused request prints its errors.
`try` before a command prints the same errors, and the records as they are, and applies none.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from protocol.config import ClusterConfig
from protocol.controller import alter_partition, brokers
from protocol.controller.administration import handle
from protocol.controller.controllers import register_controller
from protocol.controller.recovery_decisions import recovery_need
from protocol.errors import ErrorCode, Refused
from protocol.features import SUPPORTED_FEATURES, Generation
from protocol.ids import TopicIdPartition
from protocol.kafka_release import KafkaRelease
from protocol.messages.acls import AclEntry, AclOperation, AclResourceType, DeleteAclsResponse, DeleteAclsResult
from protocol.messages.admin import AdminRequest, Result
from protocol.messages.control import BrokerState, ControllerRegistrationRequest, PartitionIsrProposal
from protocol.messages.records import (
    AccessControlEntryRecord,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    ControllerFeature,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)
from protocol.messages.topics import (
    CreatableTopicResult,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsResponse,
)
from protocol.metadata.image import MetadataImage
from tests.unit.protocol.admin_script import AdminScript, split_place
from tests.unit.protocol.node_helpers import ControllerBench, fencing, registrations, topic_records
from tests.unit.protocol.partition_words import acl_entry, partition_fields, said_of, said_of_acl, said_of_record
from tests.unit.protocol.transcripts import Command, listed, numbers


def principal_entry(operation: str, resource: str) -> AccessControlEntryRecord:
    """Alice may do this to the cluster (`*`), or to a topic."""
    entry = AclEntry(
        resource_type=AclResourceType.CLUSTER if resource == "*" else AclResourceType.TOPIC,
        resource_name="kafka-cluster" if resource == "*" else resource,
        principal="User:alice",
        operation=AclOperation[operation],
    )
    return AccessControlEntryRecord(entry=entry)


class ControllerScript(AdminScript):
    """A controller's state; broker epochs are the offsets of registrations, a topic's id is its name in capitals."""

    def __init__(self) -> None:
        self.bench = ControllerBench()
        self.trying = False
        self.names: dict[str, str] = {}
        self.seen: set[str] = set()

    # -- what is given -------------------------------------------------------------------------------------------------

    def do_cluster(self, command: Command) -> None:
        """`cluster 0-4 fenced=4 generation=kip-497 kafka_release=4.3 min.insync.replicas=1`: brokers and configs."""
        generation = Generation(command.get("generation", "kip-966"))
        release = KafkaRelease(command.get("kafka_release", "4.4"))
        fenced = numbers(command.get("fenced"))
        ids = numbers(command.next("0-2"))
        static = {name: parsed(value) for name, value in command.named().items()}
        self.start(registrations(ids, fenced), ClusterConfig.of(generation, static, kafka_release=release))

    def start(self, records: Sequence[MetadataRecord], config: ClusterConfig) -> None:
        self.bench = ControllerBench(*records, config=config)

    def do_topic(self, command: Command) -> Iterator[str]:
        """`topic min_isr=2 isr=0 elr=1`: topic `t` with one partition, on 0, 1, 2, led by 0 if nothing else is said."""
        min_isr = command.number("min_isr", 2)
        yield from self.given(*topic_records(min_isr, **partition_fields(command)))

    def do_partition(self, command: Command) -> Iterator[str]:
        """`partition u-1 replicas=0,1`: one more, led by its first replica if nothing else is said."""
        topic, index = split_place(command.next())
        if self.bench.state.image.topics.get(topic.upper()) is None:
            yield from self.given(TopicRecord(name=topic, topic_id=topic.upper()))
        fields = {"replicas": (0, 1, 2)} | partition_fields(command)
        fields = {"isr": fields["replicas"], "leader": fields["replicas"][0]} | fields
        yield from self.given(PartitionRecord(topic_id=topic.upper(), partition_id=index, **fields))

    def do_raw(self, command: Command) -> Iterator[str]:
        """Records alone, without what a controller would record beside them: `raw fenced 0,1`, `raw change isr=0`,
        `raw set t flush.ms=1`, `raw level metadata.version=1`.
        """
        yield from self.given(*self.raw_records(command))

    def raw_records(self, command: Command) -> Iterator[MetadataRecord]:
        kind = command.next()
        if kind == "change":
            yield PartitionChangeRecord(topic_id="T", partition_id=0, **partition_fields(command))
        elif kind == "set":
            scope = self.scope(command.next())
            for name, value in command.named().items():
                yield ConfigRecord(topic_id=scope, name=name, value=value or None)
        elif kind == "level":
            for name, value in command.named().items():
                yield FeatureLevelRecord(name=name, feature_level=int(value))
        elif kind == "topic":
            name = command.next()
            yield TopicRecord(name=name, topic_id=name.upper())
        elif kind == "entry":
            yield AccessControlEntryRecord(entry=acl_entry(Command(shlex.join(command.words()))))
        elif kind == "allow":
            yield principal_entry(command.next(), command.next())
        else:
            for broker in numbers(command.next()):
                yield self.raw_of_broker(kind, broker)

    def raw_of_broker(self, kind: str, broker: int) -> MetadataRecord:
        epoch = self.bench.state.image.broker_epoch(broker)
        if kind == "registered":
            offset = self.bench.state.image.next_offset
            return RegisterBrokerRecord(broker_id=broker, broker_epoch=offset, incarnation_id="next", fenced=False)
        assert epoch is not None, f"broker {broker} is not registered"
        if kind == "leaving":
            return BrokerRegistrationChangeRecord(broker_id=broker, broker_epoch=epoch, in_controlled_shutdown=True)
        if kind == "unregistered":
            return UnregisterBrokerRecord(broker_id=broker, broker_epoch=epoch)
        return fencing(broker, epoch, {"fenced": True, "unfenced": False}[kind])

    def given(self, *records: MetadataRecord) -> Iterable[str]:
        self.bench.apply(records)
        return ()

    # -- what brokers do -----------------------------------------------------------------------------------------------

    def do_fence(self, command: Command) -> Iterator[str]:
        for broker in numbers(command.next()):
            yield from self.carry_out(brokers.fence(self.bench.state, broker, self.epoch_of(broker)))

    def do_unfence(self, command: Command) -> Iterator[str]:
        for broker in numbers(command.next()):
            yield from self.carry_out(brokers.unfence(self.bench.state, broker, self.epoch_of(broker)))

    def do_leave(self, command: Command) -> Iterator[str]:
        """Controlled shutdown of a broker begins."""
        broker = int(command.next())
        yield from self.carry_out(brokers.begin_controlled_shutdown(self.bench.state, broker, self.epoch_of(broker)))

    def do_register(self, command: Command) -> Iterator[str]:
        """`register 1 clean`, `register 1,2 unclean`, or with the previous epoch: `register 1 7`."""
        ids, how = numbers(command.next()), command.next("unclean")
        for broker in ids:
            known = self.bench.state.image.broker_epoch(broker)
            previous = {"clean": -1 if known is None else known, "unclean": -1}.get(how)
            previous = int(how) if previous is None else previous
            yield from self.carry_out(brokers.register(self.bench.state, broker, "next", previous, None))

    def do_register_controller(self, command: Command) -> Iterator[str]:
        """`register-controller 1000 one metadata.version=1-2`: a process with its levels, by default all."""
        controller, incarnation = int(command.next()), command.next("one")
        given = {name: tuple(map(int, text.split("-"))) for name, text in command.named().items()}
        features = tuple(
            ControllerFeature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in (given or SUPPORTED_FEATURES).items()
        )
        request = ControllerRegistrationRequest(
            correlation_id=1, controller_id=controller, incarnation_id=incarnation, features=features
        )
        try:
            yield from self.carry_out(register_controller(self.bench.state, request))
        except Refused as refused:
            yield f"refused {refused.error.name}: {refused.message}"

    def do_restore(self, command: Command) -> Iterator[str]:
        """What a snapshot restores of controllers."""
        image = self.bench.state.image
        copy = MetadataImage(image.defaults)
        copy.load(image.to_records(), image.next_offset)
        assert copy.controllers == image.controllers
        assert copy.size == len(image.to_records())
        yield f"controllers {listed(sorted(copy.controllers))}"

    def do_isr(self, command: Command) -> Iterator[str]:
        """The leader of `t-0` has another ISR accepted."""
        record = self.bench.state.change(TopicIdPartition("T", 0), target_isr=numbers(command.next()))
        yield from self.carry_out([] if record is None else [record])

    def do_propose(self, command: Command) -> Iterator[str]:
        """`propose 0,1,2@7 by=0 leader_epoch=5 recovering=1`: an AlterPartition request for `t-0`, 2 with epoch 7."""
        state = self.bench.partition()
        members = [] if (wanted := command.next()) == "-" else [word.partition("@") for word in wanted.split(",")]
        proposal = PartitionIsrProposal(
            topic_id=command.get("topic", "T"),
            partition_id=command.number("partition", 0),
            leader_epoch=command.number("leader_epoch", state.leader_epoch),
            partition_epoch=command.number("partition_epoch", state.partition_epoch),
            leader_recovery_state=command.number("recovering", 0),
            new_isr=tuple(BrokerState(broker_id=int(id_), broker_epoch=int(epoch or id_)) for id_, _, epoch in members),
        )
        error = alter_partition.validate(self.bench.state, command.number("by", 0), proposal)
        if error is not ErrorCode.NONE:
            yield error.name
            return
        record = alter_partition.propose(self.bench.state, proposal)
        yield from self.carry_out([] if record is None else [record])

    # -- what administrators ask for -----------------------------------------------------------------------------------

    def do_try(self, command: Command) -> Iterator[str]:
        """`try COMMAND`: no record is applied."""
        self.trying = True
        yield from self.run(shlex.join(command.words()))
        self.trying = False

    def ask(self, request: AdminRequest) -> Iterator[str]:
        """The errors of the request and of its parts, or its records and what they change."""
        if self.principal:
            request = replace(request, principal=self.principal)
        found = handle(self.bench.state, request)
        assert found.response.correlation_id == request.correlation_id
        if found.response.error is not ErrorCode.NONE:
            yield f"refused {found.response.error.name}: {found.response.message}"
        parts = found.response.parts()
        is_told = any(item.error is not ErrorCode.NONE for item in parts) or isinstance(found.response, TOLD_RESULTS)
        for part in parts if is_told else ():
            name = " ".join(str(value) for key in NAMING if (value := getattr(part, key, "")) not in ("", None))
            said = " ".join([name or "*", *said_of_result(part), part.error.name]).replace("\n", "\\n")
            yield said + (f": {part.message}" if part.message else "")
        if found.awaited is not None:
            places = listed(f"{key.topic_id.lower()}-{key.partition}" for key in found.awaited.places)
            yield f"awaited: {places} {found.awaited.mode.name} for {found.awaited.timeout_ms} ms"
        if found.records or (found.response.failure()[0] is ErrorCode.NONE and found.awaited is None):
            yield from self.carry_out(found.records)

    # -- what has become of it -----------------------------------------------------------------------------------------

    def do_show(self, command: Command) -> Iterator[str]:
        """`show t-0`, `show brokers`, `show t flush.ms`: the config in force; `show overrides`, `show need`;
        `show topics`; `show id t`: how many different ids were shown; `show first t-0`: leader epochs.
        """
        what, image = command.next(), self.bench.state.image
        names = command.positional()
        if what == "brokers":
            for broker, registration in image.brokers.items():
                flags = ["fenced"] * registration.fenced + ["leaving"] * registration.in_controlled_shutdown
                leads = "leads" if self.bench.state.has_leaderships(broker) else ""
                yield " ".join([f"broker {broker}", *(flags or ["active"]), *([leads] if leads else [])])
        elif what == "overrides":
            configs = {scope or "*": dict(sorted(values.items())) for scope, values in image.configs.items()}
            yield " ".join(f"{scope} {name}={value}" for scope in configs for name, value in configs[scope].items())
        elif what == "acls":
            yield ", ".join(map(said_of_acl, image.acls)) or "no entries"
        elif what == "topics":
            yield listed(image.topic_ids)
        elif what == "id":
            self.seen |= {image.topic_ids[name] for name in names}
            yield f"{len(self.seen)} different ids"
        elif what == "first":
            topic, index = split_place(names[0])
            state = self.bench.partition(TopicIdPartition(image.topic_ids[topic], index))
            yield f"{names[0]} leader epoch {state.leader_epoch}, the first one {state.first_leader_epoch}"
        elif what == "holds":
            found = self.bench.state.partitions_with(int(names[0]))
            yield f"broker {names[0]} holds {listed(f'{key.topic_id.lower()}-{key.partition}' for key in found)}"
        elif what == "need":
            yield recovery_need(image, TopicIdPartition("T", 0), self.bench.partition()).name
        elif names:
            yield " ".join(f"{topic} {image.config(self.scope(topic), names[0])}" for topic in what.split(","))
        else:
            topic, index = split_place(what)
            yield said_of(self.bench.partition(TopicIdPartition(topic.upper(), index)))

    def carry_out(self, records: Sequence[MetadataRecord]) -> Iterator[str]:
        """One line: the records in their order, for one of a partition the state that it leaves."""
        line: list[str] = []
        for record in records:
            if isinstance(record, TopicRecord):
                assert re.fullmatch(r"[A-Za-z0-9_-]{22}", record.topic_id)
                self.names[record.topic_id] = record.name
            if not self.trying:
                self.bench.apply([record])
            if isinstance(record, PartitionRecord | PartitionChangeRecord) and not self.trying:
                key = TopicIdPartition(record.topic_id, record.partition_id)
                name = self.name_of(record.topic_id)
                line.append(f"{name}-{record.partition_id} {said_of(self.bench.partition(key))}")
            else:
                line.append(self.said(record))
        yield " | ".join(line) or "no records"

    def said(self, record: MetadataRecord) -> str:
        return said_of_record(record, self.name_of)

    def name_of(self, topic_id: str) -> str:
        return self.names.get(topic_id, topic_id.lower())

    def epoch_of(self, broker: int) -> int:
        epoch = self.bench.state.image.broker_epoch(broker)
        assert epoch is not None, f"broker {broker} is not registered"
        return epoch

    def scope(self, topic: str) -> str | None:
        """A topic's id; None for `*`, the cluster."""
        return None if topic == "*" else topic.upper()


TOLD_RESULTS = (CreateTopicsResponse, DeleteTopicsResponse, DeleteAclsResponse)
"""Responses whose parts say more than an error."""
NAMING = ("topic", "name", "partition_index", "resource_name")
"""Fields by which the results of a request name its parts."""


def said_of_result(part: Result) -> Iterator[str]:
    """The counts of a topic that was created, the id of one that was deleted, entries that a filter matches."""
    if isinstance(part, DeleteAclsResult):
        yield f"matches {', '.join(map(said_of_acl, part.matching_acls)) or 'nothing'}"
    if isinstance(part, DeletableTopicResult) and part.topic_id:
        yield f"id={part.topic_id}"
    if isinstance(part, CreatableTopicResult):
        assert part.topic_id or part.num_partitions == part.replication_factor == -1
        if part.topic_id:
            yield f"{part.num_partitions}x{part.replication_factor}" if part.num_partitions >= 0 else "counts hidden"


def parsed(value: str) -> object:
    """The value of a static config."""
    named: Mapping[str, object] = {"true": True, "false": False}
    return named[value] if value in named else int(value) if value.isdigit() else value
