"""What administration answers and has done, when a plan has been judged: requests with the answers that they must get.

A run administers the cluster all the time, but notices only whether that succeeds. Here each change is followed by a
question whose answer must show it: a topic is created by counts, described in pages, configured, enlarged, reassigned
and deleted; access is granted and revoked; requests that must be refused are. Answers are compared with what was asked
for, and with the cluster as it was built. Any node answers a question, from metadata that may lag: such an answer has
to be right in time, that of a change at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from experiments.check.engine import CheckedEngine
from experiments.engines.admin_requests import (
    alter_config,
    config_text,
    create_topic,
    delete_topic,
    elect_leader,
    grow_topic,
    reassign,
    remove_voter,
    update_feature,
)
from protocol.config import AUTHORIZER_CLASS_NAME, MAX_MESSAGE_BYTES, MIN_INSYNC_REPLICAS, RETENTION_BYTES
from protocol.errors import ErrorCode
from protocol.features import METADATA_VERSION, METADATA_VERSION_ELR, SUPPORTED_FEATURES
from protocol.ids import FIRST_CONTROLLER, BrokerId
from protocol.messages import acls, cluster, configs, partitions, topics
from protocol.messages.admin import AdminRequest, AdminResponse
from protocol.messages.commands import AdminOutcome, ProduceCommand, ProduceOutcome

CHECKED_TOPIC = "checked"
_RETENTION = 123_456
_LARGEST = 1_234
"""The largest batch of the topic, in bytes."""
_UNKNOWN_VOTER = FIRST_CONTROLLER + 900
_OF_TOPIC = configs.ConfigSource.DYNAMIC_TOPIC_CONFIG
Outcome = AdminOutcome | ProduceOutcome
Judge = Callable[[Outcome], str]
"""What is wrong with an outcome, in words; empty if nothing is."""
Step = tuple[AdminRequest | ProduceCommand, Judge]
_Response = TypeVar("_Response", bound=AdminResponse)


def answer_of(outcome: Outcome, kind: type[_Response]) -> _Response:
    """The response of an outcome, which has one of this kind."""
    assert isinstance(outcome, AdminOutcome), outcome
    assert isinstance(outcome.response, kind), outcome
    return outcome.response


def differs(found: object, expected: object) -> str:
    """The difference in words, empty if there is none."""
    return "" if found == expected else f"found {found}, expected {expected}"


def answers(kind: type[_Response], part_of: Callable[[_Response], object], expected: object) -> Judge:
    """A judge of responses of a kind, a part of which must be as expected."""
    return lambda outcome: differs(part_of(answer_of(outcome, kind)), expected)


def refused(error: ErrorCode) -> Judge:
    """A judge of requests that must be refused with this error."""
    return lambda outcome: differs(outcome.error.name, error.name)


_succeeds = refused(ErrorCode.NONE)


class FinalAdministration:
    """The steps for one cluster. A step must be over before the next one is taken: requests depend on the cluster."""

    def __init__(self, engine: CheckedEngine) -> None:
        spec = engine.spec
        self._engine = engine
        self._brokers = len(spec.broker_ids)
        self._factor = min(3, self._brokers)
        self._count = self._brokers + 1
        self._racks = {broker: spec.rack_of(broker) for broker in spec.broker_ids}
        self._has_authorizer = bool(spec.config.values[AUTHORIZER_CLASS_NAME])
        self._default = config_text(spec.config.values[RETENTION_BYTES])

    def steps(self) -> Iterator[Step]:
        """The requests in their order, each with what judges its outcome."""
        yield from self._creation()
        yield from self._pages()
        yield from self._configs()
        yield grow_topic(CHECKED_TOPIC, self._count), refused(ErrorCode.INVALID_PARTITIONS)
        yield grow_topic(CHECKED_TOPIC, self._count + 1), _succeeds
        yield _describe(), partial(self._is_placed, self._count + 1)
        if not self._has_authorizer:
            yield alter_config(CHECKED_TOPIC, {MAX_MESSAGE_BYTES: _LARGEST}), _succeeds
            for acks in (0, 1, -1):
                yield _write(_LARGEST + 1, acks), _succeeds if acks == 0 else refused(ErrorCode.MESSAGE_TOO_LARGE)
                yield _write(_LARGEST, acks), _succeeds
        yield from self._move()
        yield from self._cluster()
        if self._has_authorizer:
            yield from self._access()
        yield delete_topic(CHECKED_TOPIC), _succeeds
        yield _describe(), refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        yield delete_topic(CHECKED_TOPIC), refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def _creation(self) -> Iterator[Step]:
        is_created = answers(
            topics.CreateTopicsResponse,
            lambda response: [(t.error, t.name, t.num_partitions, t.replication_factor) for t in response.topics],
            [(ErrorCode.NONE, CHECKED_TOPIC, self._count, self._factor)],
        )
        topic = _create(self._count, self._factor)
        yield replace(topic, validate_only=True), is_created
        yield _describe(), refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        for name in ("", "..", "two words"):
            yield _create(1, 1, name), refused(ErrorCode.INVALID_TOPIC_EXCEPTION)
        yield create_topic(CHECKED_TOPIC, [[0], [0, 0]]), refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT)
        yield create_topic(CHECKED_TOPIC, [[0]], {RETENTION_BYTES: "many"}), refused(ErrorCode.INVALID_CONFIG)
        yield _create(0, self._factor), refused(ErrorCode.INVALID_PARTITIONS)
        yield _create(self._count, self._brokers + 1), refused(ErrorCode.INVALID_REPLICATION_FACTOR)
        yield topic, is_created
        yield topic, refused(ErrorCode.TOPIC_ALREADY_EXISTS)
        yield _describe(), partial(self._is_placed, self._count)

    def _is_placed(self, count: int, outcome: Outcome) -> str:
        """The topic has so many partitions, placed by the rules: replicas on different brokers, in different racks
        first; the first partitions are led by different brokers where there are no racks.
        """
        topic = answer_of(outcome, topics.DescribeTopicResponse).topics[0]
        min_isrs = {each.min_insync_replicas for each in topic.partitions}
        if topic.error is not ErrorCode.NONE or min_isrs != {1}:
            return f"the topic is described with {topic.error.name}, min ISR {sorted(min_isrs)}"
        wrong = differs([each.partition_index for each in topic.partitions], list(range(count)))
        wrong = next(filter(None, map(self._wrong_with, topic.partitions)), wrong)
        leaders = [each.leader_id for each in topic.partitions[: self._brokers]]
        are_spread = len(set(leaders)) == len(leaders) or any(self._racks.values())
        return wrong or ("" if are_spread else f"the first partitions are led by {leaders}")

    def _wrong_with(self, each: topics.DescribedPartition) -> str:
        replicas = each.replica_nodes
        racks = len({self._racks[broker] for broker in replicas})
        if len(set(replicas)) != self._factor or racks != min(self._factor, len(set(self._racks.values()))):
            return f"partition {each.partition_index} has the replicas {replicas}, in {racks} racks"
        return _differs_from_whole(each, replicas)

    def _pages(self) -> Iterator[Step]:
        last = self._count - 1
        second, at_end = (topics.Cursor(topic_name=CHECKED_TOPIC, partition_index=index) for index in (1, last - 1))
        yield _describe(limit=1), answers(topics.DescribeTopicResponse, _page, ([0], second))
        yield _describe(limit=2, cursor=at_end), answers(topics.DescribeTopicResponse, _page, ([last - 1, last], None))
        yield _describe(limit=0), refused(ErrorCode.INVALID_REQUEST)

    def _move(self) -> Iterator[Step]:
        """Partition 0 gets its replicas in the reverse order, without the last one where it has another one."""
        view = self._engine.view()
        assert view is not None
        topic = next(states for key, states in sorted(view.partitions.items()) if key.topic == CHECKED_TOPIC)
        target = topic.replicas[:0:-1] if len(topic.replicas) > 1 else topic.replicas
        yield reassign(CHECKED_TOPIC, 0, (0, 0)), refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT)
        yield reassign(CHECKED_TOPIC, 0, target), _succeeds
        yield _describe(limit=1), partial(_is_assigned, target)
        nothing_moves = answers(partitions.ListPartitionReassignmentsResponse, lambda response: response.partitions, ())
        yield partitions.ListPartitionReassignmentsRequest(correlation_id=0), nothing_moves
        yield reassign(CHECKED_TOPIC, 0, None), refused(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
        for election in (partitions.ElectionType.PREFERRED, partitions.ElectionType.UNCLEAN):
            yield elect_leader(CHECKED_TOPIC, 0, election), refused(ErrorCode.ELECTION_NOT_NEEDED)
            unknown = elect_leader(CHECKED_TOPIC, self._count + 1, election)
            yield unknown, refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def _configs(self) -> Iterator[Step]:
        resource = configs.DescribeConfigsResource(
            resource_type=configs.ConfigResourceType.TOPIC,
            resource_name=CHECKED_TOPIC,
            configuration_keys=(RETENTION_BYTES,),
        )
        question = configs.DescribeConfigsRequest(correlation_id=0, resources=(resource,))
        by_default, as_changed = (
            answers(
                configs.DescribeConfigsResponse,
                lambda response: [(c.name, c.value, c.source is _OF_TOPIC) for c in response.results[0].configs],
                [(RETENTION_BYTES, value, is_of_topic)],
            )
            for value, is_of_topic in ((self._default, False), (str(_RETENTION), True))
        )
        change = alter_config(CHECKED_TOPIC, {RETENTION_BYTES: _RETENTION})
        yield replace(change, validate_only=True), _succeeds
        yield question, by_default
        yield change, _succeeds
        yield question, as_changed
        yield alter_config(CHECKED_TOPIC, {RETENTION_BYTES: "many"}), refused(ErrorCode.INVALID_CONFIG)
        yield alter_config(CHECKED_TOPIC, {RETENTION_BYTES: None}), _succeeds
        yield question, by_default

    def _cluster(self) -> Iterator[Step]:
        yield cluster.DescribeClusterRequest(correlation_id=0), self._is_the_cluster
        image = self._engine.suite.truth.latest_image()
        assert image is not None
        yield (
            cluster.DescribeFeaturesRequest(correlation_id=0),
            answers(
                cluster.DescribeFeaturesResponse,
                lambda response: {each.name: each.finalized_version_level for each in response.features},
                dict(image.feature_levels),
            ),
        )
        present, (lowest, highest) = image.feature_levels[METADATA_VERSION], SUPPORTED_FEATURES[METADATA_VERSION]
        wrong = [(highest + 1, cluster.UpgradeType.UPGRADE)]
        if present < METADATA_VERSION_ELR:
            wrong.append((METADATA_VERSION_ELR, cluster.UpgradeType.SAFE_DOWNGRADE))
            yield _change_level(METADATA_VERSION_ELR, cluster.UpgradeType.UPGRADE), _succeeds
        if lowest < present:
            wrong.append((lowest, cluster.UpgradeType.UPGRADE))
        for level, upgrade_type in wrong:
            yield _change_level(level, upgrade_type), refused(ErrorCode.INVALID_UPDATE_VERSION)
        for timeout_ms, error in ((0, ErrorCode.VOTER_NOT_FOUND), (-1, ErrorCode.INVALID_REQUEST)):
            removal = remove_voter(_UNKNOWN_VOTER, "A" * 22)
            yield replace(removal, timeout_ms=timeout_ms), refused(error)

    def _is_the_cluster(self, outcome: Outcome) -> str:
        found = answer_of(outcome, cluster.DescribeClusterResponse).brokers
        wrong = differs({each.broker_id: each.rack for each in found}, self._racks)
        out = [each.broker_id for each in found if each.is_fenced or each.in_controlled_shutdown]
        return wrong or (f"brokers {out} are described as out of service" if out else "")

    def _access(self) -> Iterator[Step]:
        entry = acls.AclEntry(
            resource_type=acls.AclResourceType.TOPIC,
            resource_name=CHECKED_TOPIC,
            principal="User:reader",
            operation=acls.AclOperation.READ,
        )
        wanted = acls.AclFilter(resource_type=acls.AclResourceType.TOPIC, resource_name=CHECKED_TOPIC)
        question = acls.DescribeAclsRequest(correlation_id=0, filter=wanted)
        yield acls.CreateAclsRequest(correlation_id=0, creations=(entry,)), _succeeds
        yield question, answers(acls.DescribeAclsResponse, lambda response: response.acls, (entry,))
        deletion = acls.DeleteAclsRequest(correlation_id=0, filters=(wanted,))
        yield (
            deletion,
            answers(acls.DeleteAclsResponse, lambda answer: answer.filter_results[0].matching_acls, (entry,)),
        )
        yield question, answers(acls.DescribeAclsResponse, lambda response: response.acls, ())


def _create(count: int, factor: int, name: str = CHECKED_TOPIC) -> topics.CreateTopicsRequest:
    min_isr = (topics.CreatableTopicConfig(name=MIN_INSYNC_REPLICAS, value="1"),)
    topic = topics.CreatableTopic(name=name, num_partitions=count, replication_factor=factor, configs=min_isr)
    return topics.CreateTopicsRequest(correlation_id=0, topics=(topic,))


def _write(size: int, acks: int) -> ProduceCommand:
    payload = bytes(size)
    return ProduceCommand(command_id=0, topic=CHECKED_TOPIC, partition=0, acks=acks, record_count=1, payload=payload)


def _describe(limit: int = 2_000, cursor: topics.Cursor | None = None) -> topics.DescribeTopicRequest:
    names = (CHECKED_TOPIC,)
    return topics.DescribeTopicRequest(correlation_id=0, topics=names, response_partition_limit=limit, cursor=cursor)


def _change_level(level: int, upgrade_type: cluster.UpgradeType) -> cluster.UpdateFeaturesRequest:
    """A change of `metadata.version` that is validated only."""
    return replace(update_feature(METADATA_VERSION, level, upgrade_type), validate_only=True)


def _differs_from_whole(each: topics.DescribedPartition, replicas: Sequence[BrokerId]) -> str:
    """How a described partition differs from one that is in sync on these replicas and led by the first of them."""
    found = (each.error, each.replica_nodes, each.leader_id, tuple(sorted(each.isr_nodes)), each.offline_replicas)
    whole = (ErrorCode.NONE, tuple(replicas), replicas[0], tuple(sorted(replicas)), ())
    moved = (each.adding_replicas, each.removing_replicas, each.leader_recovery_state)
    eligible = (each.eligible_leader_replicas or (), each.last_known_elr or ())
    return differs((*found, *moved, *eligible), (*whole, (), (), 0, (), ()))


def _page(response: topics.DescribeTopicResponse) -> object:
    return [each.partition_index for topic in response.topics for each in topic.partitions], response.next_cursor


def _is_assigned(replicas: Sequence[BrokerId], outcome: Outcome) -> str:
    return _differs_from_whole(answer_of(outcome, topics.DescribeTopicResponse).topics[0].partitions[0], replicas)
