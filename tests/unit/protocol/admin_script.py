"""Requests of administrators as commands of transcripts; what comes of them, a script of its own prints."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from itertools import groupby

from experiments.engines import admin_requests
from protocol.messages.acls import (
    AclFilter,
    AclOperation,
    AclPermissionType,
    AclResourceType,
    CreateAclsRequest,
    DeleteAclsRequest,
    PatternType,
)
from protocol.messages.admin import AdminRequest
from protocol.messages.cluster import FeatureUpdate, UpdateFeaturesRequest, UpgradeType
from protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    ConfigOperation,
    ConfigResourceType,
    IncrementalAlterConfigsRequest,
)
from protocol.messages.partitions import (
    AlterPartitionReassignmentsRequest,
    ElectionType,
    ElectLeadersRequest,
    ReassignablePartition,
    ReassignableTopic,
    TopicPartitions,
)
from protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    RemovePartitionsRequest,
    RemovePartitionsTopic,
    ReplicaAssignment,
)
from tests.unit.protocol.partition_words import acl_entry
from tests.unit.protocol.transcripts import Command, Script, numbers


class AdminScript(Script):
    """Requests for several topics have `/` between the topics."""

    principal = ""

    def ask(self, request: AdminRequest) -> Iterator[str]:
        """Passes the request on, and says what came of it."""
        raise NotImplementedError

    def do_as(self, command: Command) -> Iterator[str]:
        """`as alice COMMAND`: the principal of the request."""
        name, words = command.next(), command.words()
        self.principal = f"User:{name}"
        yield from self.run(shlex.join(words))
        self.principal = ""

    def do_elect(self, command: Command) -> Iterator[str]:
        """`elect designation t-0,1 desired=2,3`, or `elect unclean all`."""
        kind, desired = ElectionType[command.next().upper()], numbers(command.get("desired"))
        parts: list[TopicPartitions] = []
        everywhere = command.flag("all")
        for place in command.positional():
            topic, _, indexes = place.partition("-")
            parts.append(TopicPartitions(topic=topic, partitions=_indexes(indexes), desired_leaders=desired))
        wanted = None if everywhere else tuple(parts)
        yield from self.ask(ElectLeadersRequest(correlation_id=3, election_type=kind, topic_partitions=wanted))

    def do_reassign(self, command: Command) -> Iterator[str]:
        """`reassign t-0=0,1,3 u-0=cancel`; `reassign keeping t-0=0,1` does not allow another replication factor."""
        topics, may_change_factor = [], not command.flag("keeping")
        for word in command.words():
            place, _, replicas = word.partition("=")
            topic, index = split_place(place)
            target = None if replicas == "cancel" else tuple(map(int, replicas.split(","))) if replicas != "-" else ()
            part = ReassignablePartition(partition_index=index, replicas=target)
            topics.append(ReassignableTopic(name=topic, partitions=(part,)))
        yield from self.ask(
            AlterPartitionReassignmentsRequest(
                correlation_id=5, topics=tuple(topics), allow_replication_factor_change=may_change_factor
            )
        )

    def do_create(self, command: Command) -> Iterator[str]:
        """`create a 0,1,2 3,4 flush.ms=5 / b partitions=2 replicas=3`: by replicas of each partition, or by counts."""
        only = command.flag("only")
        topics = tuple(_creatable(Command(shlex.join(words))) for words in _by_topic(command))
        yield from self.ask(CreateTopicsRequest(correlation_id=1, topics=topics, validate_only=only))

    def do_delete(self, command: Command) -> Iterator[str]:
        """`delete t / id=W`; `delete nothing` has neither name nor id."""
        topics = []
        for words in _by_topic(command):
            names = [word for word in words if "=" not in word and word != "nothing"]
            ids = [word.removeprefix("id=") for word in words if "=" in word]
            topics.append(DeleteTopicState(name=next(iter(names), None), topic_id=next(iter(ids), None)))
        yield from self.ask(DeleteTopicsRequest(correlation_id=1, topics=tuple(topics)))

    def do_add(self, command: Command) -> Iterator[str]:
        """`add t 3 1,2,0 4,2,3 / w 4`: up to so many partitions; `assigned` has an empty assignment."""
        only, topics = command.flag("only"), []
        for name, count, *replicas in _by_topic(command):
            assignments = tuple(numbers(word) for word in replicas if word != "assigned") if replicas else None
            topics.append(CreatePartitionsTopic(name=name, count=int(count), assignments=assignments))
        yield from self.ask(CreatePartitionsRequest(correlation_id=1, topics=tuple(topics), validate_only=only))

    def do_remove(self, command: Command) -> Iterator[str]:
        """`remove w 3 1 2 / t 0`: partitions."""
        topics = tuple(
            RemovePartitionsTopic(name=name, partitions=tuple(map(int, indexes)))
            for name, *indexes in _by_topic(command)
        )
        yield from self.ask(RemovePartitionsRequest(correlation_id=1, topics=topics))

    def do_create_acls(self, command: Command) -> Iterator[str]:
        """`create-acls READ t / WRITE t as=User:bob`: entries in the words of `acl_entry`."""
        entries = tuple(acl_entry(Command(shlex.join(words))) for words in _by_topic(command))
        yield from self.ask(CreateAclsRequest(correlation_id=5, creations=entries))

    def do_delete_acls(self, command: Command) -> Iterator[str]:
        """`delete-acls principal=User:bob operation=READ / all`: filters."""
        kinds = {"resource_type": AclResourceType, "pattern_type": PatternType, "operation": AclOperation}
        kinds |= {"permission_type": AclPermissionType}
        filters = []
        for words in _by_topic(command):
            named = Command(shlex.join(["filter", *words])).named()
            filters.append(AclFilter(**{name: kinds[name][v] if name in kinds else v for name, v in named.items()}))
        yield from self.ask(DeleteAclsRequest(correlation_id=5, filters=tuple(filters)))

    def do_unregister(self, command: Command) -> Iterator[str]:
        yield from self.ask(admin_requests.unregister_broker(int(command.next())))

    def do_alter(self, command: Command) -> Iterator[str]:
        """`alter t min.insync.replicas=1 -flush.ms * flush.ms=7`: IncrementalAlterConfigs of a topic and the cluster.
        `name+=1` and `name--=1` append and subtract; `name=null` has no value. `only` validates.
        """
        only, found = command.flag("only"), _resources(command)
        yield from self.ask(IncrementalAlterConfigsRequest(correlation_id=1, resources=found, validate_only=only))

    def do_replace(self, command: Command) -> Iterator[str]:
        """The same by AlterConfigs, which removes all other overrides of the resources."""
        only, found = command.flag("only"), _resources(command)
        yield from self.ask(AlterConfigsRequest(correlation_id=1, resources=found, validate_only=only))

    def do_unregister_controller(self, command: Command) -> Iterator[str]:
        yield from self.ask(admin_requests.unregister_controller(int(command.next())))

    def do_update(self, command: Command) -> Iterator[str]:
        """`update metadata.version=2 unclean.recovery.enabled=0:safe`: UpdateFeatures."""
        kinds = {"": UpgradeType.UPGRADE, "safe": UpgradeType.SAFE_DOWNGRADE, "unsafe": UpgradeType.UNSAFE_DOWNGRADE}
        only, updates = command.flag("only"), []
        for word in command.words():
            name, _, level = word.partition("=")
            level, _, kind = level.partition(":")
            updates.append(FeatureUpdate(feature=name, max_version_level=int(level), upgrade_type=kinds[kind]))
        request = UpdateFeaturesRequest(correlation_id=1, feature_updates=tuple(updates), validate_only=only)
        yield from self.ask(request)


def _by_topic(command: Command) -> list[list[str]]:
    return [list(words) for is_separator, words in groupby(command.words(), "/".__eq__) if not is_separator]


def _creatable(command: Command) -> CreatableTopic:
    """A topic; `2:0,1` assigns partition 2, and `nnn*90` is a name of 270 letters."""
    text, _, times = command.name.partition("*")
    name = "" if text == "no-name" else text.replace("\\n", "\n") * int(times or 1)
    counts = {"num_partitions": command.get("partitions"), "replication_factor": command.get("replicas")}
    placed = [word.rpartition(":") for word in command.positional()]
    assignments = tuple(
        ReplicaAssignment(partition_index=int(index) if index else turn, broker_ids=numbers(replicas))
        for turn, (index, _, replicas) in enumerate(placed)
    )
    configs = tuple(
        CreatableTopicConfig(name=key, value=None if value == "null" else value)
        for key, value in command.named().items()
    )
    given = {field: int(count) for field, count in counts.items() if count}
    return CreatableTopic(**({"name": name, "assignments": assignments, "configs": configs} | given))


def split_place(place: str) -> tuple[str, int]:
    """`t-0`: topic and partition."""
    topic, _, index = place.partition("-")
    return topic, int(index)


def _indexes(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _resources(command: Command) -> tuple[AlterConfigsResource, ...]:
    """Resources and their changes, in the order of the words: `t name=value -name * name=value`."""
    found: list[tuple[str, list[AlterableConfig]]] = []
    for word in command.words():
        if "=" not in word and not word.startswith("-"):
            found.append((word, []))
            continue
        found[-1][1].append(_change(word))
    topic, cluster = ConfigResourceType.TOPIC, ConfigResourceType.BROKER
    return tuple(
        AlterConfigsResource(
            resource_type=cluster if name[0] == "*" else topic,
            resource_name="" if name in ("*", "no-name") else name.removeprefix("*"),
            configs=tuple(changes),
        )
        for name, changes in found
    )


def _change(word: str) -> AlterableConfig:
    if "=" not in word:
        return AlterableConfig(name=word[1:], operation=ConfigOperation.DELETE)
    name, _, value = word.partition("=")
    kinds = {"+": ConfigOperation.APPEND, "-": ConfigOperation.SUBTRACT}
    kind = kinds.get(name[-1], ConfigOperation.SET)
    text = None if value == "null" else value
    return AlterableConfig(name=name.rstrip("+-"), value=text, operation=kind)
