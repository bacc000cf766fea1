"""Malformed and random requests: every request gets one response, a rejected one changes nothing, and no node breaks.

Thousands of requests reach nodes with work in progress (`malformed_helpers.py`); the whole state is checked after each.
`test_refusals.py` and the tests of each request check the error that an invalid field gets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocol.broker.delayed_produce import PRODUCE_TIMER
from protocol.broker.reads import READ_TIMER
from protocol.config import ClusterConfig
from protocol.errors import CodecError, ErrorCode
from protocol.features import Generation
from protocol.ids import CLUSTER_ID, NO_LEADER, TopicIdPartition, is_broker
from protocol.messages import quorum
from protocol.messages.admin import AdminRequest, AdminResponse, MetadataRequest, Result
from protocol.messages.base import Message, Request, Response
from protocol.messages.codec import decode, encode
from protocol.messages.control import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
)
from protocol.messages.data import (
    ConsumeRequest,
    FetchPartition,
    FetchRenewal,
    FetchRequest,
    ProduceRequest,
)
from protocol.messages.quorum import LeaderChangeRecord, QuorumFetchRequest, QuorumFetchResponse
from protocol.messages.records import TopicRecord
from protocol.metadata.image import MetadataImage
from protocol.nodes.controller import ControllerNode
from tests.unit.protocol.messages.malformed_helpers import (
    BROKERS,
    NONE,
    NUMBERS,
    TEXTS,
    Controller,
    mutated,
    pools,
    request,
    varied,
)
from tests.unit.protocol.node_helpers import CLIENT, BrokerBench, batch, config_of, topic_records

pytestmark = pytest.mark.slow

PUBLISHED: tuple[type[Message], ...] = tuple(
    kind for kind in AdminRequest.__subclasses__() if kind.__module__ != quorum.__name__
)
"""The leader of the quorum answers these later: `tests/sim/test_quorum_admin.py`."""
OF_BROKERS: tuple[type[Message], ...] = (
    BrokerRegistrationRequest,
    BrokerHeartbeatRequest,
    AlterPartitionRequest,
    QuorumFetchRequest,
)
SEEDS = st.lists(st.integers(0, 2**32 - 1), min_size=20, max_size=100)


def check_image(image: MetadataImage) -> None:
    assert all(is_broker(broker) and registration.incarnation_id for broker, registration in image.brokers.items())
    assert {topic.name: topic_id for topic_id, topic in image.topics.items()} == image.topic_ids
    assert image.partition_count == sum(len(topic.partitions) for topic in image.topics.values())
    assert image.configs.keys() <= {None, *image.topics}
    for topic in image.topics.values():
        assert sorted(topic.partitions) == list(range(len(topic.partitions)))
    for key, state in image.partitions():
        replicas, isr, elr = set(state.replicas), set(state.isr), set(state.elr)
        assert len(replicas) == len(state.replicas) > 0, key
        assert len(isr) == len(state.isr), key
        assert isr <= replicas, key
        assert state.leader == NO_LEADER or state.leader in isr, key
        assert not elr & isr, key
        if image.features.track_last_known_leader:
            assert elr <= replicas, key  # Kafka's first phase leaves members there that a reassignment has moved away
        assert {*state.adding_replicas, *state.removing_replicas} <= replicas, key
        assert min(state.leader_epoch, state.partition_epoch) >= 0, key


def check_indexes(node: ControllerNode) -> None:
    image, state = node.state.image, node.state
    members: dict[int, set[TopicIdPartition]] = {}
    led: dict[int, set[TopicIdPartition]] = {}
    for key, partition in image.partitions():
        led.setdefault(partition.leader, set()).add(key)
        for broker in (*partition.isr, *partition.elr):
            members.setdefault(broker, set()).add(key)
    for broker in (NO_LEADER, *range(10), *members, *led):
        assert state.partitions_with(broker) == sorted(members.get(broker, ()))
        assert state.partitions_led_by(broker) == sorted(led.get(broker, ()))


def check_answer(controller: Controller, message: Message, before: int) -> None:
    """One answer to a request, but to a fetch in its time, and no records unless some part of it went well; brokers are
    sent what is in the log.
    """
    for fetched in controller.sends(QuorumFetchResponse):
        check_fetched(controller, fetched)
    answers = [answer for answer in controller.sends(Response) if not isinstance(answer, QuorumFetchResponse)]
    if isinstance(message, QuorumFetchRequest) or not isinstance(message, Request):
        assert answers == []
        assert controller.end == before
        return
    [answer] = answers
    assert answer.correlation_id == message.correlation_id
    if isinstance(answer, AlterPartitionResponse):
        errors = [answer.error] if answer.error is not NONE else [result.error for result in answer.partitions]
    elif isinstance(answer, AdminResponse):
        parts: Sequence[Result] = answer.parts()
        errors = [answer.error] if answer.error is not NONE or not parts else [part.error for part in parts]
    else:
        errors = [answer.error]
    if not {NONE, ErrorCode.NEW_LEADER_ELECTED} & set(errors) or getattr(message, "validate_only", False):
        assert controller.end == before
    if isinstance(message, AdminRequest) and message.READ_ONLY:
        assert controller.end == before
    encode(answer)


def check_fetched(controller: Controller, answer: QuorumFetchResponse) -> None:
    """Batches without a gap, as far as the fetch's `max_bytes` reach."""
    offsets = [batch.base_offset for batch in answer.batches]
    ends = [batch.next_offset for batch in answer.batches]
    assert offsets == sorted(offsets)
    assert offsets[1:] == ends[:-1]
    assert not ends or 0 <= offsets[0] < ends[-1] <= answer.high_watermark == controller.end
    assert answer.diverging_end_offset <= controller.end
    encode(answer)


def check_restart(controller: Controller) -> None:
    again = controller.started()
    *records, last = again.records
    assert (records, type(last)) == (list(controller.node.records), LeaderChangeRecord)
    assert again.state.image.to_records() == controller.image.to_records()
    assert again.state.image.next_offset == controller.image.next_offset + 1
    check_indexes(again)


CONFIGS = {
    "kip-966": config_of(),
    "kip-497": config_of(Generation.KIP_497),
    "with an authorizer": config_of(authorizer_class_name="standard", super_users="User:root"),
}


def log_pools(controller: Controller) -> dict[str, Sequence[object]]:
    """Values for the fields of a metadata fetch."""
    epoch, end = controller.node.replica.epoch, controller.end
    return {
        "cluster_id": (CLUSTER_ID, CLUSTER_ID, CLUSTER_ID, *TEXTS),
        "current_leader_epoch": (epoch, epoch, epoch, epoch - 1, -1, -(2**31)),
        "replica_id": BROKERS,
        "replica_uuid": ("", "", *TEXTS),
        "fetch_offset": (0, end - 1, end, end, end + 1, *NUMBERS),
        "last_fetched_epoch": (epoch, epoch, 0, -1, epoch + 1, -(2**31), 2**31 - 1),
        "high_watermark": (0, end - 1, end, end, end + 1, *NUMBERS),
    }


def random_request(controller: Controller, rng: Random, number: int) -> tuple[int, Message]:
    """A sender and a message: of a healthy cluster, the same with one random field, or with all fields random."""
    values = pools(controller.image) | log_pools(controller)
    how = rng.random()
    if how < 0.6:
        sender, message = controller.live(rng)
        message = message if how < 0.3 else varied(message, rng, values)
    else:
        kind = rng.choice(OF_BROKERS if rng.random() < 0.2 else PUBLISHED)
        message = request(kind, rng, values)
        sender = rng.choice((0, 1, 2, 3)) if kind in OF_BROKERS else CLIENT
    return sender, numbered(message, number)


def numbered(message: Message, number: int) -> Message:
    """The message as it arrives over the wire, with a correlation id of its own if it is a request."""
    if isinstance(message, Request):
        message = replace(message, correlation_id=number)
    return decode(encode(message))


@pytest.mark.covers("G31", "G32", "G33")
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@given(seeds=SEEDS)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_controller_answers_every_request_and_stays_consistent(config: ClusterConfig, seeds: list[int]) -> None:
    controller, fetches = Controller(config), set[int]()
    for seed in seeds:
        rng = Random(seed)
        sender, message = random_request(controller, rng, controller.next())
        before = controller.end
        if isinstance(message, QuorumFetchRequest):
            fetches.add(message.correlation_id)
        controller.receive(sender, message)
        for answer in controller.sends(QuorumFetchResponse):
            fetches.remove(answer.correlation_id)
        check_answer(controller, message, before)
        check_image(controller.image)
    check_indexes(controller.node)
    check_restart(controller)


@given(seeds=SEEDS)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_bytes_are_a_message_or_a_codec_error(seeds: list[int]) -> None:
    controller = Controller()
    for seed in seeds:
        rng = Random(seed)
        kind = rng.choice((*OF_BROKERS, *PUBLISHED))
        frame = mutated(request(kind, rng, pools(controller.image)), rng)
        try:
            message = decode(frame)
        except CodecError:
            continue
        before = controller.end
        controller.receive(CLIENT, message)
        check_answer(controller, message, before)
        check_image(controller.image)
    check_restart(controller)


OF_CLIENTS: tuple[type[Message], ...] = (ProduceRequest, ConsumeRequest, MetadataRequest, *PUBLISHED)
OF_FOLLOWERS: tuple[type[Message], ...] = (FetchRequest, FetchRenewal)


class Traffic:
    """A broker that leads `t-0`, and the answers to the requests that it was sent."""

    def __init__(self) -> None:
        self.bench = BrokerBench().run(*topic_records(2), TopicRecord(name="u", topic_id="U"))
        self.expected: dict[int, int] = {}
        self.answers: dict[int, int] = {}

    def live(self, rng: Random) -> tuple[int, Message]:
        """A sender and a message of a healthy cluster: a client's or a follower's."""
        log = self.bench.replica.log
        fields: dict[str, object] = {"correlation_id": 1, "topic": "t", "partition": 0}
        how = rng.random()
        if how < 0.3:
            return CLIENT, ProduceRequest(
                **(fields | {"acks": rng.choice((0, 1, -1)), "batch": batch(rng.choice((1, 2, 3)))})
            )
        if how < 0.5:
            return CLIENT, ConsumeRequest(**(fields | {"fetch_offset": rng.randint(0, log.end_offset)}))
        follower, end = rng.choice((1, 2)), rng.choice((0, log.high_watermark, log.end_offset, log.end_offset))
        fields = {"topic_id": "T", "partition_id": 0, "current_leader_epoch": 0, "fetch_offset": end}
        fields["last_fetched_epoch"] = 0 if end else -1
        partition = FetchPartition(**fields)
        return follower, FetchRequest(replica_id=follower, replica_epoch=follower, partitions=(partition,))

    def receive(self, sender: int, message: Message) -> None:
        if isinstance(message, Request):
            silent = isinstance(message, ProduceRequest) and message.acks == 0
            self.expected[message.correlation_id] = 0 if silent else 1
        end, high_watermark = self.bench.replica.log.end_offset, self.bench.high_watermark
        self.bench.receive(sender, message)
        self._count()
        assert high_watermark <= self.bench.high_watermark <= self.bench.replica.log.end_offset
        self._check_produce(message, end)

    def _check_produce(self, message: Message, end: int) -> None:
        if self.bench.replica.log.end_offset > end:
            assert isinstance(message, ProduceRequest)
            assert (message.topic, message.partition) == ("t", 0)
            assert message.acks in (-1, 0, 1)
            assert message.batch.record_count == self.bench.replica.log.end_offset - end

    def _count(self) -> None:
        for _, response in self.bench.sends(Response):
            self.answers[response.correlation_id] = self.answers.get(response.correlation_id, 0) + 1
            assert self.answers[response.correlation_id] <= self.expected[response.correlation_id]
            encode(response)

    def check_finished(self) -> None:
        """Lets all parked requests time out, then checks that every request got a response."""
        if self.bench.replica.delayed_produces:
            self.bench.fire(PRODUCE_TIMER, 10**9)
            self._count()
        self.bench.fire(READ_TIMER, 10**10)
        self._count()
        assert {number: self.answers.get(number, 0) for number in self.expected} == self.expected


def random_traffic(traffic: Traffic, rng: Random, number: int) -> tuple[int, Message]:
    """A sender and a message: of a healthy cluster, the same with one random field, or with all fields random."""
    log, how = traffic.bench.replica.log, rng.random()
    values = {
        **pools(traffic.bench.node.context.image, ("t", "t", "t", "u", "no")),
        "topic_id": ("T", "T", "U", ""),
        "fetch_offset": (0, log.end_offset, log.end_offset, log.end_offset + 1, log.high_watermark, -1, 2**63 - 1),
        "record_count": (1, 1, 2, 3, 0, -1, 2**31 - 1, -(2**31)),
        "last_fetched_epoch": (log.latest_epoch, log.latest_epoch, -1, 0, 7, -(2**31), 2**31 - 1),
    }
    if how < 0.7:
        sender, message = traffic.live(rng)
        message = message if how < 0.35 else varied(message, rng, values)
    else:
        kind = rng.choice(OF_FOLLOWERS if rng.random() < 0.2 else OF_CLIENTS)
        message = request(kind, rng, values)
        sender = rng.choice((1, 2, 7)) if kind in OF_FOLLOWERS else CLIENT
    return sender, numbered(message, number)


@pytest.mark.covers("G32")
@given(seeds=SEEDS)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_broker_answers_every_request_and_keeps_its_log(seeds: list[int]) -> None:
    traffic = Traffic()
    for number, seed in enumerate(seeds):
        traffic.receive(*random_traffic(traffic, Random(seed), number))
    traffic.check_finished()


@pytest.mark.parametrize("kind", PUBLISHED)
def test_the_controller_handles_every_administration_request(kind: type[AdminRequest]) -> None:
    [answer] = Controller().receive(CLIENT, request(kind, Random(0), {})).sends(AdminResponse)
    assert type(answer) is not AdminResponse
