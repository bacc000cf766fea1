"""The client's producer: sequence numbers and their repair, batching and its limits, one result for every record."""

from __future__ import annotations

import zlib
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.engines.sim.disk import SimLog
from protocol.client import partition_sender, producer
from protocol.client.context import DEADLINE_PREFIX
from protocol.client.producer import BLOCK_TIMER, LINGER_PREFIX
from protocol.client.records import identity, joined_size, split
from protocol.errors import ErrorCode
from protocol.log.checksum import is_intact
from protocol.log.replica_log import ReplicaLog
from protocol.messages.commands import ROUND_ROBIN, ProduceOutcome, SendOutcome, SentRange
from protocol.messages.data import ProduceRequest, ProduceResponse
from protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from tests.unit.protocol.client.client_helpers import DELIVERY_MS, REQUEST_MS, ClientBench, client_config, numbers

NONE = ErrorCode.NONE
GAP = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
MOVED = ErrorCode.NOT_LEADER_OR_FOLLOWER
SIZE = joined_size(12)
"""Bytes of a record in a batch."""


def ends(bench: ClientBench) -> list[tuple[int, ErrorCode, int, bool]]:
    """The results of the commands, in the order of their completion."""
    found = [item for item in bench.outcomes if isinstance(item, ProduceOutcome)]
    return [(item.command_id, item.error, item.base_offset, item.unknown) for item in found]


def produced(bench: ClientBench, *command_ids: int, count: int = 1) -> list[ProduceRequest]:
    """Submits these commands one after the other; returns the produce requests."""
    requests: list[ProduceRequest] = []
    for command_id in command_ids:
        requests += bench.produce(command_id, count).requests()
    return requests


# -- sequences ---------------------------------------------------------------------------------------------------------


def test_batches_are_numbered_by_their_records_under_one_producer_id() -> None:
    bench = ClientBench(partitions=2)
    requests = [*produced(bench, 1, 2, 3, count=4), *bench.produce(4, partition=1).requests()]
    assert numbers(requests) == [(5, 0, 0), (5, 0, 4), (5, 0, 8), (5, 0, 0)]
    for request in requests:
        bench.answer(request)
    assert ends(bench) == [(1, NONE, 0, False), (2, NONE, 4, False), (3, NONE, 8, False), (4, NONE, 0, False)]
    assert bench.is_at_rest()
    assert bench.producer_ids == [6, 7], "one per client is enough"


def test_sequence_numbers_wrap() -> None:
    bench = ClientBench()
    top = 2**31 - 1
    [first] = produced(bench, 1, count=top)
    bench.answer(first)
    assert numbers(produced(bench, 2, 3, count=2)) == [(5, 0, top), (5, 0, 1)]


def test_at_most_five_batches_are_in_flight_counting_from_the_oldest_unanswered() -> None:
    bench = ClientBench()
    first, *others = produced(bench, *range(1, 9))
    assert numbers([first, *others]) == [(5, 0, sequence) for sequence in range(5)]
    for request in others:
        assert bench.answer(request).requests() == [], "the leader would not know the oldest any more"
    assert numbers(bench.answer(first).requests()) == [(5, 0, 5), (5, 0, 6), (5, 0, 7)]


def test_failed_batches_are_repeated_in_order_with_their_sequence_numbers() -> None:
    bench = ClientBench()
    first, second, third = produced(bench, 1, 2, 3)
    bench.answer(second, MOVED).answer(first, MOVED)
    assert bench.requests() == []
    bench.leader, bench.leader_epoch = 1, 1
    again = bench.watch().requests()
    assert numbers(again) == numbers([first, second, third])
    assert {to for to, message in bench.sent if isinstance(message, ProduceRequest)} == {1}
    for request in again:
        bench.answer(request)
    assert [command_id for command_id, *_ in ends(bench)] == [1, 2, 3]


def test_a_batch_after_a_missing_one_waits_for_it() -> None:
    bench = ClientBench()
    first, second, third = produced(bench, 1, 2, 3)
    assert bench.answer(second, GAP).requests() == []
    assert bench.answer(third, GAP).requests() == []
    assert bench.answer(first, ErrorCode.NOT_ENOUGH_REPLICAS).requests() == []
    assert numbers(bench.watch().requests()) == numbers([first, second, third])


def test_a_batch_after_a_missing_one_follows_once_that_is_appended() -> None:
    bench = ClientBench()
    first, second = produced(bench, 1, 2)
    bench.answer(second, GAP)
    assert numbers(bench.answer(first).requests()) == numbers([second])


@pytest.mark.parametrize("error", [GAP, ErrorCode.UNKNOWN_PRODUCER_ID])
def test_a_gap_at_the_first_batch_bumps_the_producer_epoch(error: ErrorCode) -> None:
    bench = ClientBench()
    [first] = produced(bench, 1)
    bench.answer(first)
    second, third = produced(bench, 2, 3)
    again = bench.answer(second, error).requests()
    assert numbers(again) == [(5, 1, 0), (5, 1, 1)]
    assert [request.batch.payload for request in again] == [second.batch.payload, third.batch.payload]
    bench.answer(again[0]).answer(again[1])
    assert [(command_id, found) for command_id, found, *_ in ends(bench)] == [(1, NONE), (2, NONE), (3, NONE)]


def test_after_an_unanswered_batch_the_others_keep_their_sequence_numbers() -> None:
    bench = ClientBench(config=client_config(request_timeout_ms=DELIVERY_MS))
    assert len(produced(bench, 1)) == 1
    bench.now_ms = 1_000
    [second] = produced(bench, 2)
    bench.expire()
    assert ends(bench) == [(1, ErrorCode.REQUEST_TIMED_OUT, -1, True)]
    assert produced(bench, 3) == [], "its number depends on what became of the first"
    assert numbers(bench.answer(second).requests()) == [(5, 1, 0)]
    assert ends(bench)[1:] == [(2, NONE, 1, False)]


def test_after_a_batch_that_was_never_appended_the_others_begin_a_new_epoch() -> None:
    bench = ClientBench()
    final = (ErrorCode.NOT_ENOUGH_REPLICAS,)
    [first] = bench.produce(1, final_errors=final).requests()
    [second] = produced(bench, 2)
    bench.answer(first, ErrorCode.NOT_ENOUGH_REPLICAS)
    assert ends(bench) == [(1, ErrorCode.NOT_ENOUGH_REPLICAS, -1, False)]
    assert numbers(bench.answer(second, GAP).requests()) == [(5, 1, 0)]


def test_the_sequence_number_of_a_failed_batch_is_not_reused() -> None:
    bench = ClientBench()
    [first] = produced(bench, 1)
    bench.answer(first, ErrorCode.MESSAGE_TOO_LARGE)
    assert numbers(produced(bench, 2)) == [(5, 1, 0)]


def test_after_the_last_epoch_a_new_producer_id_is_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_sender, "MAX_PRODUCER_EPOCH", 1)
    bench = ClientBench(partitions=2)
    for command_id, expected in ((1, (5, 0, 0)), (2, (5, 1, 0)), (3, (6, 0, 0)), (4, (6, 1, 0)), (5, (7, 0, 0))):
        [request] = produced(bench, command_id)
        assert numbers([request]) == [expected]
        bench.answer(request, ErrorCode.MESSAGE_TOO_LARGE)
    [other] = bench.produce(6, partition=1).requests()
    assert numbers([other]) == [(7, 0, 0)]


def test_a_batch_without_a_response_is_repeated_after_the_request_timeout() -> None:
    bench = ClientBench()
    first, second = produced(bench, 1, 2)
    assert bench.run_until(REQUEST_MS - 1).requests() == []
    assert numbers(bench.run_until(REQUEST_MS).requests()) == numbers([first, second])


def test_no_batch_goes_to_the_leader_of_an_older_epoch() -> None:
    bench = ClientBench()
    bench.leader, bench.leader_epoch = 1, 7
    [first] = produced(bench, 1)
    bench.answer(first, MOVED)
    bench.leader, bench.leader_epoch = 0, 6
    assert bench.watch().requests() == []
    bench.topic_id, bench.leader_epoch = "U", 0
    assert numbers(bench.watch().requests()) == numbers([first]), "a topic of the same name is another topic"


def test_a_duplicate_without_a_known_offset_is_unknown() -> None:
    bench = ClientBench()
    [first] = produced(bench, 1)
    bench.answer(first, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
    assert ends(bench) == [(1, ErrorCode.DUPLICATE_SEQUENCE_NUMBER, -1, True)]


@pytest.mark.parametrize(("acks", "idempotence"), [(1, True), (0, True), (-1, False)])
def test_a_producer_without_idempotence_has_no_sequence_numbers(acks: int, idempotence: bool) -> None:
    bench = ClientBench(config=client_config(enable_idempotence=idempotence))
    [request] = bench.produce(1, acks=acks).requests()
    assert numbers([request]) == [(-1, -1, -1)]
    if acks:
        assert bench.run_until(DELIVERY_MS - 1).requests() == [], "it would be stored twice"
        bench.answer(request, base_offset=9)
    assert [(command_id, error) for command_id, error, *_ in ends(bench)] == [(1, NONE)]
    assert bench.is_at_rest()


def test_batches_get_their_checksum_when_they_are_sent() -> None:
    bench = ClientBench(checksum=zlib.crc32)
    requests = produced(bench, 1, 2)
    bench.answer(requests[0])
    requests += bench.answer(requests[1], GAP).requests()
    requests += bench.produce(3, acks=1).requests()
    assert len({request.batch.crc for request in requests}) == 4
    assert all(is_intact(request.batch, zlib.crc32) and request.batch.crc >= 0 for request in requests)


# -- producer ids ------------------------------------------------------------------------------------------------------


def test_without_a_producer_id_no_batch_is_sent_and_the_next_controller_is_asked() -> None:
    bench = ClientBench(producer_ids=(), controllers=(1000, 1001))
    bench.produce(1)
    asked = [to for to, message in bench.sent if isinstance(message, InitProducerIdRequest)]
    for _ in range(2):
        bench.ask_again()
        asked += [to for to, message in bench.sent if isinstance(message, InitProducerIdRequest)]
    assert (asked, bench.requests()) == ([1000, 1001, 1000], [])
    bench.fire(DEADLINE_PREFIX)
    assert ends(bench) == [(1, ErrorCode.REQUEST_TIMED_OUT, -1, False)]
    assert bench.is_at_rest()


def test_an_unauthorized_producer_fails_at_once() -> None:
    bench = ClientBench(producer_ids=())
    [asked] = bench.produce(1).messages(InitProducerIdRequest)
    denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    bench.receive(1000, InitProducerIdResponse(correlation_id=asked.correlation_id, error=denied))
    assert ends(bench) == [(1, denied, -1, False)]
    assert bench.is_at_rest()


def test_not_controller_repeats_the_producer_id_request_after_the_back_off() -> None:
    bench = ClientBench(producer_ids=())
    [asked] = bench.produce(1).messages(InitProducerIdRequest)
    bench.receive(1000, InitProducerIdResponse(correlation_id=asked.correlation_id, error=ErrorCode.NOT_CONTROLLER))
    bench.producer_ids = [5]
    assert numbers(bench.ask_again().requests()) == [(5, 0, 0)]


# -- batches of records ------------------------------------------------------------------------------------------------


def records(request: ProduceRequest) -> list[tuple[int, int]]:
    """Command and number of the records in a batch."""
    return [identity(data) for data in split(request.batch.payload)]


def outcomes(bench: ClientBench) -> list[SendOutcome]:
    return [item for item in bench.outcomes if isinstance(item, SendOutcome)]


def test_records_are_batched_for_linger_ms() -> None:
    bench = ClientBench(config=client_config(linger_ms=5))
    assert bench.send_records(1, 2).requests() == []
    bench.now_ms = 3
    assert bench.send_records(2, 1).requests() == []
    assert bench.timers[f"{LINGER_PREFIX}t/0/-1"] == 5
    [request] = bench.fire(LINGER_PREFIX).requests()
    assert records(request) == [(1, 0), (1, 1), (2, 0)]
    assert request.batch.record_count == 3
    bench.answer(request, base_offset=40)
    assert outcomes(bench) == [
        SendOutcome(
            command_id=1, error=NONE, ranges=(SentRange(first=0, count=2, partition=0, error=NONE, base_offset=40),)
        ),
        SendOutcome(
            command_id=2, error=NONE, ranges=(SentRange(first=0, count=1, partition=0, error=NONE, base_offset=42),)
        ),
    ]
    assert bench.is_at_rest()


def test_a_full_batch_is_sent_at_once() -> None:
    bench = ClientBench(config=client_config(batch_size=3 * SIZE + 1))
    requests = bench.send_records(1, 7).requests()
    assert [len(records(request)) for request in requests] == [3, 3]
    requests += bench.fire(LINGER_PREFIX).requests()
    assert [number for request in requests for _, number in records(request)] == list(range(7))
    for request in requests:
        bench.answer(request)
    [outcome] = outcomes(bench)
    assert outcome.ranges == (SentRange(first=0, count=7, partition=0, error=NONE, base_offset=0),)


def test_a_record_larger_than_batch_size_has_a_batch_of_its_own() -> None:
    bench = ClientBench(config=client_config(batch_size=10))
    assert [len(records(request)) for request in bench.send_records(1, 2).requests()] == [1, 1]


def test_without_linger_records_are_sent_at_once() -> None:
    bench = ClientBench(config=client_config(linger_ms=0))
    assert [len(records(request)) for request in bench.send_records(1, 2).requests()] == [1, 1]


def test_the_batch_of_a_produce_command_follows_earlier_records() -> None:
    bench = ClientBench()
    bench.send_records(1, 2)
    requests = bench.produce(2).requests()
    assert numbers(requests) == [(5, 0, 0), (5, 0, 2)]


def test_records_without_a_partition_change_it_with_each_batch() -> None:
    bench = ClientBench(partitions=3, config=client_config(batch_size=2 * SIZE))
    requests = sorted(bench.send_records(1, 8, partition=ROUND_ROBIN).requests(), key=records)
    assert [request.partition for request in requests] == [0, 1, 2, 0]
    for request in requests:
        bench.answer(request)
    [outcome] = outcomes(bench)
    reported = [(part.first, part.count, part.partition, part.base_offset) for part in outcome.ranges]
    assert reported == [(0, 2, 0, 0), (2, 2, 1, 0), (4, 2, 2, 0), (6, 2, 0, 2)]


def test_records_without_a_partition_wait_until_the_partitions_are_known() -> None:
    bench = ClientBench(partitions=2, config=client_config(linger_ms=0))
    bench.leader = None
    assert bench.send_records(1, 1, partition=ROUND_ROBIN).requests() == []
    bench.leader = 0
    assert len(bench.run_until(2_000).requests()) == 1


def test_only_the_records_of_a_failed_batch_fail() -> None:
    bench = ClientBench(config=client_config(batch_size=2 * SIZE))
    first, second = bench.send_records(1, 4).requests()
    bench.answer(second, ErrorCode.INVALID_RECORD).answer(first)
    [outcome] = outcomes(bench)
    assert outcome.error is ErrorCode.INVALID_RECORD
    assert outcome.ranges == (
        SentRange(first=0, count=2, partition=0, error=NONE, base_offset=0),
        SentRange(first=2, count=2, partition=0, error=ErrorCode.INVALID_RECORD),
    )


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"record_bytes": 11}, ErrorCode.INVALID_RECORD),
        ({"count": 0}, ErrorCode.INVALID_RECORD),
        ({"record_bytes": 500}, ErrorCode.MESSAGE_TOO_LARGE),
    ],
)
def test_invalid_send_commands_fail_at_once(fields: dict[str, int], error: ErrorCode) -> None:
    bench = ClientBench(config=client_config(buffer_memory=500))
    bench.send_records(1, **fields)
    [outcome] = outcomes(bench)
    assert (outcome.error, sum(part.count for part in outcome.ranges)) == (error, fields.get("count", 1))
    assert bench.is_at_rest()


# -- bounds ------------------------------------------------------------------------------------------------------------


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


def test_held_records_fail_after_max_block_ms_and_admitted_ones_continue() -> None:
    bench = small()
    requests = bench.send_records(1, 13).requests()
    bench.now_ms = 500
    bench.produce(2)
    assert bench.timers[BLOCK_TIMER] == 1_000
    bench.fire(BLOCK_TIMER)
    assert bench.outcomes == []
    bench.fire(BLOCK_TIMER)
    assert ends(bench) == [(2, ErrorCode.REQUEST_TIMED_OUT, -1, False)]
    for request in requests:
        bench.answer(request)
    [outcome] = outcomes(bench)
    assert [(part.first, part.count, part.error, part.unknown) for part in outcome.ranges] == [
        (0, 10, NONE, False),
        (10, 3, ErrorCode.REQUEST_TIMED_OUT, False),
    ]
    assert bench.is_at_rest()


def test_at_most_max_held_commands_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer, "MAX_HELD", 2)
    bench = small()
    bench.send_records(1, 13).send_records(2, 1).send_records(3, 1)
    [outcome] = outcomes(bench)
    assert (outcome.command_id, outcome.error) == (3, ErrorCode.REQUEST_TIMED_OUT)


def test_a_silent_cluster_bounds_memory_by_buffer_memory() -> None:
    bench = small(max_block_ms=600_000)
    for command_id in range(1, 200):
        bench.send_records(command_id, 1_000)
        bench.run_until(bench.now_ms + 10)
        assert bench.node.buffered_bytes <= 10 * SIZE
    in_flight = [len(sender._window) for sender in bench.node._producer._senders.values()]
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
