"""Requests of administrators as commands of transcripts; what comes of them, a script of its own prints."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from experiments.engines import admin_requests
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
from tests.unit.protocol.transcripts import Command, Script, numbers


class AdminScript(Script):
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
        """`reassign t-0=0,1,3 u-0=cancel`."""
        topics = []
        for word in command.words():
            place, _, replicas = word.partition("=")
            topic, index = split_place(place)
            target = None if replicas == "cancel" else tuple(map(int, replicas.split(","))) if replicas != "-" else ()
            part = ReassignablePartition(partition_index=index, replicas=target)
            topics.append(ReassignableTopic(name=topic, partitions=(part,)))
        yield from self.ask(AlterPartitionReassignmentsRequest(correlation_id=5, topics=tuple(topics)))

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
