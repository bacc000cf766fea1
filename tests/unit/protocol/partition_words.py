"""The words of transcripts for partitions (fields as `isr=0,1 leader=-`, states, changes) and for metadata records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from protocol.ids import NO_LEADER, UNCHANGED_LEADER
from protocol.messages.acls import AclEntry, AclOperation, AclPermissionType, AclResourceType, PatternType
from protocol.messages.records import (
    AccessControlEntryRecord,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    RemoveAccessControlEntryRecord,
    RemovePartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnregisterBrokerRecord,
    UnregisterControllerRecord,
)
from protocol.metadata.partition import PartitionState
from tests.unit.protocol.transcripts import Command, listed, numbers

TUPLES = {
    "replicas": "replicas",
    "isr": "isr",
    "elr": "eligible_leader_replicas",
    "last_known_elr": "last_known_elr",
    "adding": "adding_replicas",
    "removing": "removing_replicas",
}
NUMBERS = {
    "leader": "leader",
    "last_known_leader": "last_known_leader",
    "recovering": "leader_recovery_state",
    "leader_epoch": "leader_epoch",
    "partition_epoch": "partition_epoch",
    "first_leader_epoch": "first_leader_epoch",
}


def partition_fields(command: Command) -> dict[str, Any]:
    """The fields of a partition's record that the command names: `isr=0,1 leader=-`; those with a dot are configs."""
    fields: dict[str, Any] = {}
    for name, value in command.named(lambda name: "." not in name).items():
        if name in TUPLES:
            fields[TUPLES[name]] = numbers(value)
        else:
            fields[NUMBERS[name]] = -1 if value == "-" else int(value)
    return fields


def said_of(state: PartitionState, home: tuple[int, ...] = (0, 1, 2)) -> str:
    """The state of a partition, without what is empty, and without its replicas if it is at `home`."""
    lists = (("elr", state.elr), ("last_known_elr", state.last_known_elr))
    moves = (("adding", state.adding_replicas), ("removing", state.removing_replicas))
    parts = [f"leader={state.leader if state.leader != NO_LEADER else '-'} isr={listed(state.isr)}"]
    parts += [f"{name}={listed(sorted(value))}" for name, value in lists if value]
    parts += [f"last_known_leader={state.last_known_leader}"] if state.last_known_leader != NO_LEADER else []
    parts += ["recovering"] if state.leader_recovery_state else []
    parts += [f"replicas={listed(state.replicas)}"] if state.replicas != home or any(v for _, v in moves) else []
    parts += [f"{name}={listed(value)}" for name, value in moves if value]
    return " ".join([*parts, f"epochs={state.leader_epoch}/{state.partition_epoch}"])


def said_of_change(record: PartitionChangeRecord) -> str:
    """What a record changes of a partition."""
    parts = [] if record.leader == UNCHANGED_LEADER else [f"leader={'-' if record.leader < 0 else record.leader}"]
    lists = {name: getattr(record, field) for name, field in TUPLES.items()}
    parts += [f"{name}={listed(value)}" for name, value in lists.items() if value is not None]
    last, state = record.last_known_leader, record.leader_recovery_state
    parts += [] if last == UNCHANGED_LEADER else [f"last_known_leader={'-' if last < 0 else last}"]
    parts += [] if state < 0 else [f"recovering={state}"]
    return " ".join(parts)


def acl_entry(command: Command) -> AclEntry:
    """`READ t`, `ALTER kafka-cluster as=User:bob prefixed deny host=*`: an entry, of Alice if no principal is named."""
    name = command.next()
    name = "" if name == "no-name" else name
    of_cluster = command.flag("cluster") or name == "kafka-cluster"
    return AclEntry(
        resource_type=AclResourceType.CLUSTER if of_cluster else AclResourceType.TOPIC,
        resource_name=name,
        pattern_type=PatternType.PREFIXED if command.flag("prefixed") else PatternType.LITERAL,
        principal=command.get("as", "User:alice"),
        host=command.get("host", "*"),
        operation=AclOperation[command.name],
        permission_type=AclPermissionType.DENY if command.flag("deny") else AclPermissionType.ALLOW,
    )


def said_of_acl(entry: AclEntry) -> str:
    flags = [""] * (entry.pattern_type is PatternType.LITERAL) or [" prefixed"]
    flags += [" denied"] * (entry.permission_type is AclPermissionType.DENY)
    return f"{entry.operation.name} {entry.resource_name} of {entry.principal}{''.join(flags)}"


def said_of_record(record: MetadataRecord, name_of: Callable[[str], str] = str.lower) -> str:
    """A record in the words of commands; `name_of` gives the name of the topic with an id."""
    match record:
        case PartitionChangeRecord():
            return f"change {name_of(record.topic_id)}-{record.partition_id} {said_of_change(record)}"
        case PartitionRecord():
            placed = f"replicas={listed(record.replicas)} leader={record.leader} isr={listed(record.isr)}"
            return f"partition {name_of(record.topic_id)}-{record.partition_id} {placed}"
        case TopicRecord():
            return f"topic {record.name}"
        case RemoveTopicRecord():
            return f"removed {name_of(record.topic_id)}"
        case RemovePartitionRecord():
            return f"removed {name_of(record.topic_id)}-{record.partition_id}"
        case AccessControlEntryRecord():
            return f"entry {said_of_acl(record.entry)}"
        case RemoveAccessControlEntryRecord():
            return f"removed {said_of_acl(record.entry)}"
        case ConfigRecord():
            value = "-" if record.value is None else record.value
            return f"set {name_of(record.topic_id) if record.topic_id else '*'} {record.name}={value}"
        case FeatureLevelRecord():
            return f"level {record.name}={record.feature_level}"
    return said_of_broker(record)


def said_of_broker(record: MetadataRecord) -> str:
    """A record of a registration; of other records the name of their type."""
    match record:
        case RegisterBrokerRecord():
            return f"registered {record.broker_id}"
        case RegisterControllerRecord():
            return f"controller {record.controller_id} registered"
        case UnregisterControllerRecord():
            return f"controller {record.controller_id} unregistered"
        case UnregisterBrokerRecord():
            return f"unregistered {record.broker_id}"
        case BrokerRegistrationChangeRecord() if record.fenced is not None:
            return f"{'fenced' if record.fenced else 'unfenced'} {record.broker_id}"
        case BrokerRegistrationChangeRecord() if record.in_controlled_shutdown:
            return f"leaving {record.broker_id}"
    return type(record).__name__
