"""Requests of admins in generation `v3`: the controller writes them into the store for the client, over its broker's
session, and its own watches find them (A6, A8, A9, A18, A20, N9).

A request that V3 does not have (configs that change, features, quorum, access control, producer ids) gets
UNSUPPORTED_VERSION. The response to a reassignment, an addition or a removal says that it has been requested; the
controller carries it out afterwards.

Requests that only read are answered from what the store has published at that moment, since brokers of `v3` know only
the partitions that they hold: the nodes of the topics that the request names, or of all topics, become a metadata
image, from which later generations answer (`metadata/queries.py`).

Topics and requests for the controller are written in one transaction each, so that the controller never sees a part of
one. The functions that write return what was refused, as a wire error.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from random import Random
from typing import Any, TypeVar

from protocol.config import DEFAULT_REPLICATION_FACTOR, NUM_PARTITIONS, ClusterConfig
from protocol.contract import Outbox
from protocol.controller.placement import UsableBroker, place
from protocol.controller.reassignments import require_same_factor
from protocol.controller.topics import CLUSTER_DEFAULT, assigned_layout, name_error, requested_configs
from protocol.errors import ErrorCode, Refused
from protocol.ids import BrokerId, NodeId, TimeMs, TopicPartition
from protocol.messages.admin import AdminRequest, AdminResponse
from protocol.messages.cluster import DescribeClusterRequest
from protocol.messages.configs import DescribeConfigsRequest, ListConfigResourcesRequest
from protocol.messages.partitions import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    PartitionResult,
)
from protocol.messages.records import ConfigRecord, MetadataRecord, RegisterBrokerRecord, TopicRecord
from protocol.messages.store import Check, Create, Delete, GetChildren, GetData, SetData, StoreError, WriteOperation
from protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeTopicRequest,
    RemovePartitionsRequest,
    RemovePartitionsResponse,
    RemovePartitionsTopic,
    TopicResult,
)
from protocol.metadata.image import MetadataImage
from protocol.metadata.queries import answer
from protocol.v3.controller.broker_changes import elect_leaders
from protocol.v3.controller.context import Controller
from protocol.v3.controller.decisions import Replicas
from protocol.v3.controller.procedure import Procedure, error_of, read, same_topic, write
from protocol.v3.controller.publishing import children, read_present
from protocol.v3.controller.runner import Runner
from protocol.v3.controller.term import ControllerTerms
from protocol.v3.store import paths
from protocol.v3.store.records import DamagedNodeError, ReplicasNode, Topic, TopicNode
from protocol.v3.store.view import StoreView, store_view

Wanted = TypeVar("Wanted", CreatePartitionsTopic, RemovePartitionsTopic)

ATTEMPTS = 8
"""How often a transaction is decided again after another admin or the controller has changed what it depends on."""


def create_topic(
    name: str, topic_id: str, assignment: Mapping[int, Replicas], configs: Mapping[str, str] | None = None
) -> Procedure[ErrorCode]:
    """Creates a topic with its assignment and config overrides; the controller initialises its partitions."""
    node = TopicNode(topic_id=topic_id, partitions=dict(assignment), configs=dict(configs or {}))
    created = (Create(path=paths.topic(name), data=node.encode()), Create(path=paths.incarnation(name, topic_id)))
    (unit,) = yield from write((created,), is_fenced=False)
    known = {StoreError.NONE: ErrorCode.NONE, StoreError.NODE_EXISTS: ErrorCode.TOPIC_ALREADY_EXISTS}
    return known.get(error_of(unit), ErrorCode.INVALID_TOPIC_EXCEPTION)


def delete_topic(name: str) -> Procedure[ErrorCode]:
    """Deletes a topic with its partitions and the requests about them; the controller stops its replicas."""
    for _ in range(ATTEMPTS):
        (topic,) = yield from read((GetData(path=paths.topic(name)),))
        if topic.error:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        requested = [f"{root}/{name}" for root in paths.REQUESTS]
        found = yield from read(GetChildren(path=path) for path in (paths.topic(name), *requested))
        nodes = []
        for child in found[0].children:
            path = f"{paths.topic(name)}/{child}"
            nodes += [f"{path}/{paths.LEADER_AND_ISR}", path] if child.isdigit() else [path]
        nodes.append(paths.topic(name))
        for parent, result in zip(requested, found[1:], strict=True):
            if not result.error:
                nodes += [*(f"{parent}/{child}" for child in result.children), parent]
        (unit,) = yield from write((tuple(Delete(path=path) for path in nodes),), is_fenced=False)
        if error_of(unit) is StoreError.NONE:
            return ErrorCode.NONE
    return ErrorCode.REQUEST_TIMED_OUT


def request(root: str, key: TopicPartition, replicas: Replicas = ()) -> Procedure[ErrorCode]:
    """Requests the reassignment to `replicas`, the addition on them, or the removal, by one of `paths.REQUESTS`."""
    path, parent = paths.request(root, key), f"{root}/{key.topic}"
    data = ReplicasNode(replicas=replicas).encode() if root != paths.REMOVED else b""
    for _ in range(ATTEMPTS):
        (topic, above) = yield from read((GetData(path=paths.topic(key.topic)), GetData(path=parent)))
        if topic.error:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        node = TopicNode.decode(paths.topic(key.topic), topic.data)
        exists = key.partition in node.partitions
        if exists is (root == paths.ADDED):
            return ErrorCode.INVALID_PARTITIONS if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        is_same = same_topic(key.topic, node.topic_id)
        wanted: list[WriteOperation] = [is_same, Check(path=paths.topic(key.topic), version=topic.version)]
        wanted += [Create(path=parent)] if above.error else []
        (unit,) = yield from write(((*wanted, Create(path=path, data=data)),), is_fenced=False)
        if error_of(unit) is StoreError.NODE_EXISTS and not above.error:
            (unit,) = yield from write(((is_same, SetData(path=path, data=data)),), is_fenced=False)
        if error_of(unit) is StoreError.NONE:
            return ErrorCode.NONE
    return ErrorCode.REQUEST_TIMED_OUT


def cancel_reassignment(key: TopicPartition) -> Procedure[ErrorCode]:
    """Withdraws a reassignment; the partition returns to its assignment."""
    (unit,) = yield from write(((Delete(path=paths.request(paths.REASSIGNED, key)),),), is_fenced=False)
    return ErrorCode.NONE if error_of(unit) is StoreError.NONE else ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


_ID_BITS = 48


class Administration:
    """Handler of admin requests of one broker. `rng` makes topic ids, and places replicas."""

    def __init__(
        self, config: ClusterConfig, controller: ControllerTerms, runner: Runner, out: Outbox, rng: Random
    ) -> None:
        self._config = config
        self._controller = controller
        self._runner = runner
        self._out = out
        self._rng = rng
        self._procedures: Mapping[type[AdminRequest], Callable[[Controller, Any], Procedure[AdminResponse]]] = {
            CreateTopicsRequest: self._create_topics,
            DeleteTopicsRequest: self._delete_topics,
            CreatePartitionsRequest: self._create_partitions,
            RemovePartitionsRequest: self._remove_partitions,
            AlterPartitionReassignmentsRequest: self._reassign,
            **dict.fromkeys(
                (
                    DescribeClusterRequest,
                    DescribeTopicRequest,
                    DescribeConfigsRequest,
                    ListConfigResourcesRequest,
                    ListPartitionReassignmentsRequest,
                ),
                partial(query, config),
            ),
        }

    def handle(self, now_ms: TimeMs, sender: NodeId, message: AdminRequest) -> None:
        """Answers when the request is in the store."""

        def respond(now_ms: TimeMs, response: AdminResponse | None) -> None:
            reason = "this broker is not the controller any more"
            self._out.send(sender, response or message.refusal(ErrorCode.NOT_CONTROLLER, reason))

        term, name = self._controller.term, type(message).__name__
        procedure = self._procedures.get(type(message))
        if term is None:
            reason = "this broker is not the controller"
            self._out.send(sender, message.refusal(ErrorCode.NOT_CONTROLLER, reason))
        elif isinstance(message, ElectLeadersRequest):
            term.runner.call(now_ms, "election-of-leaders", partial(_elect, term.controller, message), respond)
        elif procedure is None:
            self._out.send(sender, message.refusal(ErrorCode.UNSUPPORTED_VERSION, f"v3 has no {name}"))
        else:
            self._runner.call(now_ms, name, partial(procedure, term.controller, message), respond)

    def _create_topics(self, controller: Controller, message: CreateTopicsRequest) -> Procedure[AdminResponse]:
        results, live = [], (yield from _read_live())
        for topic in message.topics:
            try:
                layout = self._layout(controller, live, topic)
                configs = requested_configs(topic)
                topic_id = f"{topic.name.lstrip('.')[:200]}.{self._rng.getrandbits(_ID_BITS):x}"
                if not message.validate_only:
                    error = yield from create_topic(topic.name, topic_id, dict(enumerate(layout)), configs)
                    _require_done(error, f"topic {topic.name!r}")
                count, factor = len(layout), len(layout[0])
                result = CreatableTopicResult(
                    name=topic.name, topic_id=topic_id, num_partitions=count, replication_factor=factor
                )
            except Refused as reason:
                result = CreatableTopicResult(name=topic.name, error=reason.error, message=reason.message)
            results.append(result)
        return CreateTopicsResponse(correlation_id=message.correlation_id, topics=tuple(results))

    def _layout(self, controller: Controller, live: Collection[BrokerId], topic: CreatableTopic) -> Sequence[Replicas]:
        if invalid := name_error(topic.name):
            raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, invalid)
        if not topic.assignments:
            count, factor = topic.num_partitions, topic.replication_factor
            count = self._config.int_value(NUM_PARTITIONS) if count == CLUSTER_DEFAULT else count
            factor = self._config.int_value(DEFAULT_REPLICATION_FACTOR) if factor == CLUSTER_DEFAULT else factor
            if count <= 0:
                raise Refused(ErrorCode.INVALID_PARTITIONS, f"{count} partitions; allowed: above 0")
            return self._place(controller, live, count, factor)
        return _alive(live, assigned_layout(topic))

    def _place(self, controller: Controller, live: Collection[BrokerId], count: int, factor: int) -> Sequence[Replicas]:
        usable = [UsableBroker(broker) for broker in sorted(set(live) - controller.leaving)]
        return place(usable, count, factor, self._rng)

    def _delete_topics(self, controller: Controller, message: DeleteTopicsRequest) -> Procedure[AdminResponse]:
        names = {topic.topic_id: name for name, topic in controller.topics.items()}
        results = []
        for wanted in message.topics:
            name = wanted.name if wanted.name is not None else names.get(wanted.topic_id or "")
            error = ErrorCode.UNKNOWN_TOPIC_ID
            if name is not None:
                error = yield from delete_topic(name)
            text = "" if not error else f"topic {name or wanted.topic_id!r}: {error.name}"
            results.append(DeletableTopicResult(name=name, topic_id=wanted.topic_id, error=error, message=text))
        return DeleteTopicsResponse(correlation_id=message.correlation_id, topics=tuple(results))

    def _create_partitions(self, controller: Controller, message: CreatePartitionsRequest) -> Procedure[AdminResponse]:
        live = yield from _read_live()

        def add(topic: CreatePartitionsTopic) -> Procedure[None]:
            added = self._added(controller, live, topic)
            for key, replicas in added.items() if not message.validate_only else ():
                yield from _request(paths.ADDED, key, replicas)

        results = yield from _each_topic(message.topics, add)
        return CreatePartitionsResponse(correlation_id=message.correlation_id, topics=results)

    def _added(
        self, controller: Controller, live: Collection[BrokerId], topic: CreatePartitionsTopic
    ) -> dict[TopicPartition, Replicas]:
        known = _known_topic(controller, topic.name)
        count = topic.count - len(known.partitions)
        if count <= 0:
            reason = f"topic {topic.name!r} has {len(known.partitions)} partitions; found {topic.count}"
            raise Refused(ErrorCode.INVALID_PARTITIONS, reason)
        layout = topic.assignments
        if layout is None:
            factor = len(next(iter(known.partitions.values()), (0,)))
            layout = tuple(self._place(controller, live, count, factor))
        if len(layout) != count:
            reason = f"found {len(layout)} assignments for {count} new partitions"
            raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)
        _alive(live, layout)
        first = max(known.partitions, default=-1) + 1
        return {TopicPartition(topic.name, first + index): brokers for index, brokers in enumerate(layout)}

    def _remove_partitions(self, controller: Controller, message: RemovePartitionsRequest) -> Procedure[AdminResponse]:
        def remove(topic: RemovePartitionsTopic) -> Procedure[None]:
            indexes = sorted(_known_topic(controller, topic.name).partitions)
            last = indexes[len(indexes) - len(topic.partitions) :] if topic.partitions else []
            if sorted(topic.partitions) != last or len(last) == len(indexes):
                reason = f"found partitions {list(topic.partitions)} of {indexes}; allowed: the last ones, not all"
                raise Refused(ErrorCode.INVALID_PARTITIONS, reason)
            for index in topic.partitions:
                yield from _request(paths.REMOVED, TopicPartition(topic.name, index))

        results = yield from _each_topic(message.topics, remove)
        return RemovePartitionsResponse(correlation_id=message.correlation_id, topics=results)

    def _reassign(
        self, controller: Controller, message: AlterPartitionReassignmentsRequest
    ) -> Procedure[AdminResponse]:
        results, live = [], (yield from _read_live())
        for topic in message.topics:
            for wanted in topic.partitions:
                key, error, text = TopicPartition(topic.name, wanted.partition_index), ErrorCode.NONE, ""
                try:
                    if wanted.replicas is None:
                        error = yield from cancel_reassignment(key)
                        text = "" if not error else f"{key} is not being reassigned"
                    else:
                        _alive(live, (wanted.replicas,))
                        if not message.allow_replication_factor_change:
                            move = controller.moves.get(key)
                            require_same_factor(wanted.replicas, move.target if move else controller.assigned(key))
                        yield from _request(paths.REASSIGNED, key, wanted.replicas)
                except Refused as reason:
                    error, text = reason.error, reason.message
                results.append(
                    PartitionResult(topic=key.topic, partition_index=key.partition, error=error, message=text)
                )
        return AlterPartitionReassignmentsResponse(
            correlation_id=message.correlation_id,
            partitions=tuple(results),
            allow_replication_factor_change=message.allow_replication_factor_change,
        )


def _each_topic(
    topics: Iterable[Wanted], carry_out: Callable[[Wanted], Procedure[None]]
) -> Procedure[tuple[TopicResult, ...]]:
    results = []
    for topic in topics:
        try:
            yield from carry_out(topic)
            results.append(TopicResult(name=topic.name))
        except Refused as reason:
            results.append(TopicResult(name=topic.name, error=reason.error, message=reason.message))
    return tuple(results)


def _request(root: str, key: TopicPartition, replicas: Replicas = ()) -> Procedure[None]:
    try:
        _require_done((yield from request(root, key, replicas)), str(key))
    except DamagedNodeError as damage:
        raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR, str(damage)) from damage


def _require_done(error: ErrorCode, what: str) -> None:
    if error:
        raise Refused(error, f"{what}: {error.name}")


def _known_topic(controller: Controller, name: str) -> Topic:
    known = controller.topics.get(name)
    if known is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic {name!r}")
    return known


def _read_live() -> Procedure[Collection[BrokerId]]:
    """The registered brokers at this moment; the controller may not have read the last of them yet."""
    names = yield from children(paths.BROKER_IDS, watch=False)
    return {int(name) for name in names if name.isdecimal()}


def _alive(live: Collection[BrokerId], layout: Sequence[Replicas]) -> Sequence[Replicas]:
    """The layout; raises Refused unless the replicas of each partition are different live brokers (A53)."""
    for brokers in layout:
        if not brokers or len(set(brokers)) < len(brokers):
            raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"found replicas {list(brokers)}; allowed: each once")
        if dead := sorted(set(brokers).difference(live)):
            raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"brokers {dead} are not alive")
    return layout


def _elect(controller: Controller, message: ElectLeadersRequest) -> Procedure[AdminResponse]:
    """Elects leaders. For a request about all partitions, those that needed no election are left out."""
    named = message.topic_partitions
    wanted = [TopicPartition(item.topic, index) for item in named or () for index in item.partitions]
    try:
        outcome = yield from elect_leaders(controller, message.election_type, None if named is None else wanted)
    except Refused as reason:
        return message.refusal(reason.error, reason.message)
    results = tuple(
        PartitionResult(
            topic=key.topic, partition_index=key.partition, error=error, message=f"{key}: {error.name}" if error else ""
        )
        for key, error in outcome.items()
        if named is not None or error is not ErrorCode.ELECTION_NOT_NEEDED
    )
    return ElectLeadersResponse(correlation_id=message.correlation_id, partitions=results)


def query(config: ClusterConfig, controller: Controller, request: AdminRequest) -> Procedure[AdminResponse]:
    """Answers a request that only reads."""
    named = request.topics if isinstance(request, DescribeTopicRequest) else ()
    nodes = yield from _read_nodes(named)
    image = MetadataImage(config)
    for record in _records(store_view(nodes), controller.leaving):
        image.replay(record)
    return answer(image, controller.author.controller, request)


def _read_nodes(named: Collection[str]) -> Procedure[dict[str, tuple[bytes, int]]]:
    """Data and version of the nodes of brokers, topics, partitions and reassignments; without names of all topics."""
    brokers = yield from children(paths.BROKER_IDS, watch=False)
    found = yield from read_present(f"{paths.BROKER_IDS}/{name}" for name in brokers)
    existing = yield from children(paths.TOPICS, watch=False)
    topics = yield from read_present(paths.topic(name) for name in existing if not named or name in named)
    keys: list[TopicPartition] = []
    for path, result in topics.items():
        with suppress(DamagedNodeError):  # which the controller has reported
            partitions = TopicNode.decode(path, result.data).partitions
            keys += [TopicPartition(path.rpartition("/")[2], index) for index in sorted(partitions)]
    found |= topics | (yield from read_present(map(paths.leader_and_isr, keys)))
    moving = yield from children(paths.REASSIGNED, watch=False)
    requests = (paths.request(paths.REASSIGNED, key) for key in keys if key.topic in moving)
    found |= yield from read_present(requests)
    return {path: (result.data, result.version) for path, result in found.items()}


def _records(view: StoreView, leaving: Collection[BrokerId]) -> Iterator[MetadataRecord]:
    for broker, registration in view.brokers.items():
        values = asdict(replace(registration, in_controlled_shutdown=broker in leaving))
        del values["endpoint"]  # its brokers have no listeners
        yield RegisterBrokerRecord(**values)
    for name, topic_id in view.topic_ids.items():
        yield TopicRecord(name=name, topic_id=topic_id)
        for config, value in sorted(view.topic_configs[name].items()):
            yield ConfigRecord(topic_id=topic_id, name=config, value=value)
    for key, state in view.partitions.items():
        yield state.to_record(view.topic_ids[key.topic], key.partition)
