"""The client's producer: bounds of memory, a result for every record. Examples: `testdata/producer.txt`."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.engines.sim.disk import SimLog
from protocol.client.producer import LINGER_PREFIX
from protocol.client.records import identity, joined_size, split
from protocol.errors import ErrorCode
from protocol.log.replica_log import ReplicaLog
from protocol.messages.admin import MetadataRequest, MetadataResponse
from protocol.messages.commands import ROUND_ROBIN, SendOutcome
from protocol.messages.data import ProduceRequest, ProduceResponse
from tests.unit.protocol.client.client_helpers import ClientBench, client_config

NONE = ErrorCode.NONE
SIZE = joined_size(12)
"""Bytes of a record in a batch."""


def records(request: ProduceRequest) -> list[tuple[int, int]]:
    """Command and number of the records in a batch."""
    return [identity(data) for data in split(request.batch.payload)]


def outcomes(bench: ClientBench) -> list[SendOutcome]:
    return [item for item in bench.outcomes if isinstance(item, SendOutcome)]


def small(**values: object) -> ClientBench:
    """A producer with memory for ten records, two per batch."""
    stands: dict[str, object] = {"buffer_memory": 10 * SIZE, "batch_size": 2 * SIZE, "max_block_ms": 1_000}
    return ClientBench(config=client_config(**(stands | values)))


def test_a_command_is_held_until_buffer_memory_has_room() -> None:
    bench = small()
    requests = bench.send_records(1, 13).requests()
    assert (len(requests), bench.node.buffered_bytes) == (5, 10 * SIZE)
    assert bench.send_records(2, 1).requests() == [], "behind the first"
    [taken] = bench.answer(requests.pop(0)).requests()
    assert (records(taken), bench.node.buffered_bytes) == ([(1, 10), (1, 11)], 10 * SIZE)
    requests.append(taken)
    while requests:
        requests = [*requests[1:], *bench.answer(requests[0]).requests()]
        assert bench.node.buffered_bytes <= 10 * SIZE
        if LINGER_PREFIX in "".join(bench.timers):
            requests += bench.fire(LINGER_PREFIX).requests()
    assert {item.command_id: sum(part.count for part in item.ranges) for item in outcomes(bench)} == {1: 13, 2: 1}
    assert {item.error for item in outcomes(bench)} == {NONE}
    assert bench.is_at_rest()


def test_each_principal_has_a_producer_of_its_own() -> None:
    bench = ClientBench(config=client_config(linger_ms=0))
    own = bench.produce(1).requests()
    other = bench.produce(2, principal="User:bob").requests()
    sent = [*own, *other, *bench.produce(3, principal="User:bob").requests(), *bench.produce(4).requests()]
    assert [(it.principal, it.batch.producer_id, it.batch.base_sequence) for it in sent] == [
        ("User:client-3000", 5, 0),
        ("User:bob", 6, 0),
        ("User:bob", 6, 1),
        ("User:client-3000", 5, 1),
    ]
    for request in sent:
        bench.answer(request)
    assert [(outcome.command_id, outcome.error) for outcome in bench.outcomes] == [(n, NONE) for n in (1, 2, 3, 4)]
    assert bench.is_at_rest()


def test_the_timers_of_principals_do_not_meet() -> None:
    bench = ClientBench(config=client_config(linger_ms=5))
    for command_id, user in ((1, "User:client-3000"), (2, "User:a/b"), (3, "User:a")):
        bench.send_records(command_id, principal=user)
    assert sorted(name for name in bench.timers if LINGER_PREFIX in name) == [
        "as/0/linger/t/0/-1",
        "as/1/linger/t/0/-1",
        "linger/t/0/-1",
    ]
    for name in ("as/1/", "as/0/", "linger/"):
        [request] = bench.fire(f"{name}linger/" if name != "linger/" else name).requests()
        bench.answer(request)
    assert [outcome.command_id for outcome in outcomes(bench)] == [3, 2, 1]
    assert bench.is_at_rest()


def test_records_whose_principal_may_not_describe_the_topic_are_refused_at_once() -> None:
    bench = ClientBench()
    bench.leader = None
    bench.send_records(1, partition=ROUND_ROBIN, principal="User:bob")
    for node, request in [(to, it) for to, it in bench.sent if isinstance(it, MetadataRequest)]:
        assert request.principal == "User:bob"
        denied = MetadataResponse(correlation_id=request.correlation_id, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        bench.receive(node, denied)
    [outcome] = outcomes(bench)
    assert (outcome.error, sum(part.count for part in outcome.ranges)) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, 1)
    assert bench.is_at_rest()


def test_a_silent_cluster_bounds_memory_by_buffer_memory() -> None:
    bench = small(max_block_ms=600_000)
    for command_id in range(1, 200):
        bench.send_records(command_id, 1_000)
        bench.run_until(bench.now_ms + 10)
        assert bench.node.buffered_bytes <= 10 * SIZE
    in_flight = [len(sender._window) for sender in bench.node._own.producer._senders.values()]
    assert in_flight == [5]


# -- any course of events ----------------------------------------------------------------------------------------------


class Partition:
    """Two brokers that alternate as leaders of `t-0`, an unreliable link, and the client. A new leader's log becomes
    the log of the partition; it may lack records or have uncommitted ones. The maximum batch size changes now and then.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.bench = small(request_timeout_ms=400, delivery_timeout_ms=20_000, batch_size=4 * SIZE)
        self.log = ReplicaLog(SimLog())
        self.max_records = 4
        self.commands: dict[int, int] = {}

    def run(self) -> Partition:
        for number in range(1, 60):
            requests = []
            if self.random.random() < 0.5:
                self.commands[number] = self.random.randint(1, 4)
                requests = self.bench.send_records(number, self.commands[number]).requests()
            requests += self.bench.run_until(self.bench.now_ms + self.random.choice((1, 20, 300))).requests()
            self.deliver(requests)
            if self.random.random() < 0.05:
                self.move()
            if self.random.random() < 0.1:
                self.max_records = self.random.randint(1, 4)
        for _ in range(400):
            self.deliver(self.bench.run_until(self.bench.now_ms + 500).requests(), loss=0)
        return self

    def move(self) -> None:
        """The other broker becomes leader; its log may lack uncommitted records."""
        assert self.bench.leader is not None
        self.bench.leader, self.bench.leader_epoch = 1 - self.bench.leader, self.bench.leader_epoch + 1
        self.log.truncate(self.random.randint(self.log.high_watermark, self.log.end_offset))

    def deliver(self, requests: list[ProduceRequest], loss: float = 0.2) -> None:
        while requests:
            later: list[ProduceRequest] = []
            for request in requests:
                if self.random.random() >= loss:
                    response = self.handle(request)
                    if self.random.random() >= loss:
                        later += self.bench.receive(0, response).requests()
            requests = later

    def handle(self, request: ProduceRequest) -> ProduceResponse:
        number = request.correlation_id
        if self.random.random() < 0.05:
            return ProduceResponse(correlation_id=number, error=ErrorCode.NOT_ENOUGH_REPLICAS)
        if request.batch.record_count > self.max_records:
            return ProduceResponse(correlation_id=number, error=ErrorCode.MESSAGE_TOO_LARGE)
        error, known = self.log.producers.check(request.batch)
        if error is not NONE:
            return ProduceResponse(correlation_id=number, error=error)
        stored = known or self.log.append_as_leader(request.batch, self.bench.leader_epoch)
        if self.random.random() < 0.1:
            late = ErrorCode.REQUEST_TIMED_OUT
            return ProduceResponse(correlation_id=number, error=late, base_offset=stored.base_offset)
        self.log.advance_high_watermark(stored.next_offset)
        return ProduceResponse(correlation_id=number, base_offset=stored.base_offset)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32))
def test_every_record_has_one_result_and_is_stored_once_and_in_order_at_its_reported_offset(seed: int) -> None:
    partition = Partition(seed).run()
    assert partition.bench.is_at_rest()
    batches = partition.log.storage.read(0, 10**9)
    stored = [identity(data) for batch in batches for data in split(batch.payload)]
    assert len(set(stored)) == len(stored), "stored twice"
    assert sorted(stored) == stored, "out of order"
    reported = {item.command_id: item for item in outcomes(partition.bench)}
    assert reported.keys() == partition.commands.keys()
    for command_id, count in partition.commands.items():
        numbers_reported = [part.first + n for part in reported[command_id].ranges for n in range(part.count)]
        assert numbers_reported == list(range(count))
        for part in reported[command_id].ranges:
            for place in range(part.count):
                record = (command_id, part.first + place)
                if part.error is NONE:
                    assert stored[part.base_offset + place] == record
                elif not part.unknown:
                    assert record not in stored
