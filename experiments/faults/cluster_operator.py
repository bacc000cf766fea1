"""The operator of a simulated cluster: changes its metadata, and takes the changes back.

A fault of administration declares a part of the *desired state* (`DesiredState`). The operator compares the desired
state with the metadata of the active controller (in `v3` with the store, which has only topics) and requests what is
missing, or what has to be taken back, until they agree. The cluster may refuse a request, not answer it, or carry it
out late, after its timeout or in `v3` after its response; so the operator looks again every 500 ms to the end of the
run, and has one request open per topic, for the levels, for the configs of a topic or of the cluster, and for the
access control entries. A topic is created again with its first assignment and configs.

When unclean recovery is enabled again, a leaderless partition whose ELR is empty may have a last known leader and no
last known ELR: the first phase records one broker only. Such a partition waits for a user (F29), so the operator, who
caused it, requests the unclean election, which elects the last known leader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from experiments.check.engine import CheckedEngine
from experiments.engines.admin_requests import (
    alter_config,
    create_topic,
    delete_topic,
    elect_leader,
    grow_topic,
    remove_partitions,
)
from protocol.controller.recovery_decisions import RecoveryNeed, recovery_need
from protocol.ids import BrokerId
from protocol.messages.acls import AclEntry, AclFilter, CreateAclsRequest, DeleteAclsRequest
from protocol.messages.admin import AdminRequest
from protocol.messages.cluster import FeatureUpdate, UpdateFeaturesRequest, UpgradeType
from protocol.messages.partitions import ElectionType
from protocol.metadata.image import MetadataImage

LOOK_EVERY_MS = 500


class CreatedTopic(Protocol):
    """What a topic was created with: the replicas of each partition, and configs."""

    @property
    def assignments(self) -> Sequence[Sequence[BrokerId]]: ...

    @property
    def config(self) -> Mapping[str, object]: ...


class DesiredState(NamedTuple):
    """A part of the desired state: topics that shall not exist, how many partitions more topics shall have, levels by
    feature, configs by topic (None: cluster-wide), and access control entries that shall exist. Of a level or config
    that several parts have the latest declaration counts.
    """

    deleted: tuple[str, ...] = ()
    added: Mapping[str, int] = {}
    levels: Mapping[str, int] = {}
    configs: Mapping[str | None, Mapping[str, object]] = {}
    entries: tuple[AclEntry, ...] = ()


class ClusterOperator:
    """`submit` sends a request and returns its command's number; `topics` may be deleted and created again."""

    def __init__(
        self, engine: CheckedEngine, submit: Callable[[AdminRequest], int], topics: Mapping[str, CreatedTopic]
    ) -> None:
        self._engine = engine
        self._submit = submit
        self._topics = topics
        self._desired: dict[int, DesiredState] = {}
        self._configs: dict[str | None, dict[str, None]] = {}
        self._touched: dict[str, None] = {}
        self._is_scheduled = False
        self._open: dict[str, int] = {}
        self._is_needed = False
        self._has_changed_levels = False

    def declare(self, number: int, desired: DesiredState) -> None:
        """The fault of that number desires this state from now on."""
        self._desired[number] = desired
        for topic, config in desired.configs.items():
            self._configs.setdefault(topic, {}).update(dict.fromkeys(config))
        self._touched.update(dict.fromkeys((*desired.deleted, *desired.added)))
        self._has_changed_levels = self._has_changed_levels or bool(desired.levels)
        self._is_needed = True
        self.review()

    def release(self, number: int) -> None:
        del self._desired[number]
        self.review()

    def forget_requests(self) -> None:
        self._open.clear()

    def stop(self) -> None:
        """Requests nothing from now on: others change the metadata."""
        self._is_needed = False

    def _look_again(self) -> None:
        self._is_scheduled = False
        self.review()

    def review(self) -> None:
        """Requests what is missing, where no request is open, and looks again later."""
        if self._is_needed and not self._is_scheduled:
            self._is_scheduled = True
            self._engine.cluster.call_at(self._engine.now_ms() + LOOK_EVERY_MS, self._look_again)
        for subject, request in self._due():
            number = self._open.get(subject)
            if number is None or self._engine.outcome(number) is not None:
                self._open[subject] = self._submit(request)

    def is_settled(self) -> bool:
        """Whether the metadata are in the desired state, and no request is open that could change that."""
        if not self._is_needed:
            return True
        is_open = any(self._engine.outcome(number) is None for number in self._open.values())
        return self._engine.view() is not None and not is_open and next(self._due(), None) is None

    def _due(self) -> Iterator[tuple[str, AdminRequest]]:
        """The requests that are due, each with its subject; none while no controller is active."""
        view = self._engine.view() if self._is_needed else None
        if view is None:
            return
        for name in self._touched:
            present = sorted(partition.partition for partition in view.partitions if partition.topic == name)
            request = self._for_topic(name, self._topics[name], present)
            if request is not None:
                yield name, request
        active = self._engine.active_node()
        if active is None:
            return
        image = active.state.image
        yield from self._due_levels(image)
        yield from self._due_elections(image)
        for topic, names in self._configs.items():
            yield from self._due_configs(image, topic, names)
        yield from self._due_entries(image)

    def _due_levels(self, image: MetadataImage) -> Iterator[tuple[str, AdminRequest]]:
        levels = dict(self._engine.spec.config.generation.feature_levels)
        for desired in self._desired.values():
            levels |= desired.levels
        updates = []
        for name, level in levels.items():
            present = image.feature_levels[name]
            kind = UpgradeType.UPGRADE if level > present else UpgradeType.UNSAFE_DOWNGRADE
            if level != present:
                updates.append(FeatureUpdate(feature=name, max_version_level=level, upgrade_type=kind))
        if updates:
            yield "feature levels", UpdateFeaturesRequest(correlation_id=0, feature_updates=tuple(updates))

    def _due_elections(self, image: MetadataImage) -> Iterator[tuple[str, AdminRequest]]:
        if not self._has_changed_levels or any(desired.levels for desired in self._desired.values()):
            return
        for key, partition in image.partitions():
            if recovery_need(image, key, partition) is RecoveryNeed.USER:
                name = image.name_of(key)
                yield str(name), elect_leader(name.topic, name.partition, ElectionType.UNCLEAN)

    def _due_configs(
        self, image: MetadataImage, topic: str | None, names: Mapping[str, None]
    ) -> Iterator[tuple[str, AdminRequest]]:
        topic_id = None if topic is None else image.topic_ids.get(topic)
        if topic is not None and topic_id is None:
            return
        before: Mapping[str, object] = {} if topic is None else self._topics[topic].config
        wanted: dict[str, object | None] = {name: before.get(name) for name in names}
        for desired in self._desired.values():
            wanted |= desired.configs.get(topic, {})
        present = image.configs.get(topic_id, {})
        changes = {name: value for name, value in wanted.items() if present.get(name) != value}
        if changes:
            yield f"configs of {topic or 'the cluster'}", alter_config(topic, changes)

    def _due_entries(self, image: MetadataImage) -> Iterator[tuple[str, AdminRequest]]:
        wanted = {entry: None for desired in self._desired.values() for entry in desired.entries}
        missing = tuple(entry for entry in wanted if entry not in image.acls)
        extra = tuple(AclFilter.exactly(entry) for entry in image.acls if entry not in wanted)
        if missing:
            yield "access control entries", CreateAclsRequest(correlation_id=0, creations=missing)
        elif extra:
            yield "access control entries", DeleteAclsRequest(correlation_id=0, filters=extra)

    def _for_topic(self, name: str, created: CreatedTopic, present: Sequence[int]) -> AdminRequest | None:
        """The request that a topic with these partitions (none: it does not exist) needs."""
        if any(name in desired.deleted for desired in self._desired.values()):
            return delete_topic(name) if present else None
        if not present:
            return create_topic(name, created.assignments, created.config)
        wanted = len(created.assignments) + sum(desired.added.get(name, 0) for desired in self._desired.values())
        if len(present) < wanted:
            return grow_topic(name, wanted)
        return remove_partitions(name, present[wanted:]) if len(present) > wanted else None
