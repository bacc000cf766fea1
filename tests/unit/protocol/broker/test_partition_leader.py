"""A broker as partition leader: produce, consume, high watermark, changes of the ISR."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.broker.delayed_produce import PRODUCE_TIMER
from protocol.broker.isr_shrink import LAG_PREFIX, SILENT_PREFIX
from protocol.config import Generation
from protocol.controller.alter_partition import decide, result
from protocol.controller.brokers import fence
from protocol.errors import ErrorCode
from protocol.messages.control import AlterPartitionRequest, AlterPartitionResponse, PartitionIsrResult
from protocol.messages.data import ConsumeRequest, ConsumeResponse, FetchPartitionResult, FetchResponse, ProduceResponse
from protocol.messages.records import ConfigRecord, PartitionChangeRecord
from tests.unit.protocol.node_helpers import (
    CLIENT,
    CONTROLLER,
    BrokerBench,
    ControllerBench,
    config_of,
    fencing,
    registrations,
    topic_records,
)

LAG_MS = 1_000
TIMEOUT_MS = 30_000


def leader(
    min_isr: int = 2, generation: Generation = Generation.KIP_966, records: int = 0, **partition: object
) -> BrokerBench:
    """Broker 0 leads `t-0` with replicas 0, 1, 2 (or `partition`); the ISR has its `records` and parked fetches."""
    config = config_of(generation, replica_lag_time_max_ms=LAG_MS, request_timeout_ms=TIMEOUT_MS)
    bench = BrokerBench(config=config).run(*topic_records(min_isr, **partition))
    if records:
        bench.produce(acks=1, count=records)
    leadership = bench.replica.leadership
    for follower in () if leadership is None else leadership.isr[1:]:
        bench.fetch(follower, records)
    return bench


def change(**fields: object) -> PartitionChangeRecord:
    return PartitionChangeRecord(**({"topic_id": "T", "partition_id": 0} | fields))


def answer(bench: BrokerBench, request: AlterPartitionRequest, **fields: object) -> BrokerBench:
    """The controller accepts the proposal, or answers with `fields`."""
    [proposal] = request.partitions
    stands: dict[str, object] = {
        "topic_id": "T",
        "partition_id": 0,
        "leader": 0,
        "leader_epoch": proposal.leader_epoch,
        "partition_epoch": proposal.partition_epoch + 1,
        "isr": tuple(member.broker_id for member in proposal.new_isr),
    }
    result = PartitionIsrResult(**(stands | fields))
    response = AlterPartitionResponse(correlation_id=request.correlation_id, partitions=(result,))
    return bench.receive(CONTROLLER, response)


def fetched(bench: BrokerBench, follower: int) -> FetchPartitionResult:
    """The one result that the last input sent to this follower."""
    [result] = [r for to, message in bench.sends(FetchResponse) if to == follower for r in message.partitions]
    return result


def proposed(bench: BrokerBench) -> list[int]:
    """The ISR of the one proposal that the last input sent."""
    [proposal] = bench.sent(AlterPartitionRequest).partitions
    return [member.broker_id for member in proposal.new_isr]


# -- produce -----------------------------------------------------------------------------------------------------------


@pytest.mark.covers("E5")
def test_acks_0_is_not_answered_and_acks_1_is_answered_once_on_append() -> None:
    bench = leader()
    assert bench.produce(acks=0).sends(ProduceResponse) == []
    answered = bench.produce(acks=1, correlation_id=8).sent(ProduceResponse)
    assert (answered.correlation_id, answered.error, answered.base_offset) == (8, ErrorCode.NONE, 1)
    bench.fetch(1, 2)
    assert bench.fetch(2, 2).sends(ProduceResponse) == []
    assert bench.high_watermark == 2


@pytest.mark.covers("E5", "A42")
def test_acks_all_is_answered_when_the_whole_isr_has_the_records() -> None:
    bench = leader()
    assert bench.produce(count=3, correlation_id=8).sends(ProduceResponse) == []
    assert bench.fetch(1, 3).sends(ProduceResponse) == []
    assert bench.fetch(2, 2).sends(ProduceResponse) == []
    bench.fetch(2, 3)
    [(client, answered)] = bench.sends(ProduceResponse)
    assert (client, answered.correlation_id, answered.error, answered.base_offset) == (CLIENT, 8, ErrorCode.NONE, 0)
    assert bench.high_watermark == 3


REFUSED = {
    "unknown topic": ({"topic": "u"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    "unknown partition": ({"partition": 7}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
}


@pytest.mark.covers("A30")
@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize(("fields", "error"), REFUSED.values(), ids=REFUSED)
def test_produce_without_a_led_partition_is_refused(acks: int, fields: dict[str, object], error: ErrorCode) -> None:
    answered = leader().produce(acks=acks, **fields).sent(ProduceResponse)
    assert (answered.error, answered.base_offset) == (error, -1)


@pytest.mark.covers("A30")
def test_a_follower_refuses_produce_and_consume() -> None:
    bench = leader(leader=1)
    assert bench.produce().sent(ProduceResponse).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert bench.produce(acks=0).sends(ProduceResponse) == []
    assert consume(bench).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert bench.replica.log.end_offset == 0


@pytest.mark.covers("E4", "E5", "E6", "E7", "M4")
def test_below_min_isr_acks_all_is_refused_and_other_records_stay_uncommitted() -> None:
    bench = leader(isr=(0,))
    refused = bench.produce(acks=-1).sent(ProduceResponse)
    assert (refused.error, refused.base_offset) == (ErrorCode.NOT_ENOUGH_REPLICAS, -1)
    assert bench.replica.log.end_offset == 0, "refused before the append"
    assert bench.produce(acks=1).sent(ProduceResponse).error is ErrorCode.NONE
    bench.produce(acks=0)
    assert (bench.replica.log.end_offset, bench.high_watermark) == (2, 0)
    assert (consume(bench).high_watermark, consume(bench).batches) == (0, ())
    request = bench.fetch(1, 2).sent(AlterPartitionRequest)
    assert bench.high_watermark == 0
    answer(bench, request)
    assert (bench.high_watermark, len(consume(bench).batches)) == (2, 2)


@pytest.mark.covers("E6")
def test_an_isr_below_min_isr_after_the_append_delays_the_produce() -> None:
    bench = leader()
    bench.produce(correlation_id=8)
    bench.publish(change(isr=(0,), eligible_leader_replicas=(1, 2)))
    assert (bench.high_watermark, bench.sends(ProduceResponse)) == (0, [])
    timed_out = bench.fire(PRODUCE_TIMER, at_ms=TIMEOUT_MS).sent(ProduceResponse)
    assert (timed_out.error, timed_out.base_offset) == (ErrorCode.REQUEST_TIMED_OUT, 0)


@pytest.mark.covers("E6", "N7")
def test_without_the_min_isr_rule_the_produce_gets_not_enough_replicas_after_append() -> None:
    bench = leader(generation=Generation.KIP_497)
    bench.produce(correlation_id=8)
    answered = bench.publish(change(isr=(0,))).sent(ProduceResponse)
    assert (answered.error, answered.base_offset) == (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, 0)
    assert bench.high_watermark == 1


@pytest.mark.covers("E11", "E10")
def test_a_lone_leader_with_min_isr_1_commits_every_append_at_once() -> None:
    bench = leader(min_isr=1, isr=(0,))
    assert bench.produce().sent(ProduceResponse).error is ErrorCode.NONE
    assert bench.high_watermark == 1


def test_only_expired_produces_time_out() -> None:
    bench = leader()
    setting = bench.produce(correlation_id=1).timer(PRODUCE_TIMER)
    assert setting is not None
    assert setting.at_ms == TIMEOUT_MS
    bench.now_ms = 10
    assert bench.produce(correlation_id=2).timer(PRODUCE_TIMER) is None
    bench.fire(PRODUCE_TIMER, at_ms=TIMEOUT_MS)
    assert [message.correlation_id for _, message in bench.sends(ProduceResponse)] == [1]
    again = bench.timer(PRODUCE_TIMER)
    assert again is not None
    assert again.at_ms == TIMEOUT_MS + 10


# -- consume -----------------------------------------------------------------------------------------------------------


def consume(bench: BrokerBench, offset: int = 0) -> ConsumeResponse:
    request = ConsumeRequest(correlation_id=5, topic="t", partition=0, fetch_offset=offset)
    return bench.receive(CLIENT, request).sent(ConsumeResponse)


@pytest.mark.covers("A31", "E7", "M31", "N21")
@pytest.mark.parametrize(
    ("offset", "error", "shown"),
    [
        (0, ErrorCode.NONE, [0, 1]),
        (1, ErrorCode.NONE, [1]),
        (2, ErrorCode.NONE, []),
        (3, ErrorCode.NONE, []),
        (4, ErrorCode.NONE, []),
        (5, ErrorCode.OFFSET_OUT_OF_RANGE, []),
    ],
    ids=["from the start", "within", "at the high watermark", "above it", "at the log end", "behind the log end"],
)
def test_consumers_read_up_to_the_high_watermark(offset: int, error: ErrorCode, shown: list[int]) -> None:
    bench = leader()
    for _ in range(4):
        bench.produce(acks=1)
    bench.fetch(1, 2)
    bench.fetch(2, 2)
    found = consume(bench, offset)
    assert (found.error, [b.base_offset for b in found.batches]) == (error, shown)


# -- fetch -------------------------------------------------------------------------------------------------------------


@pytest.mark.covers("A42")
def test_a_fetch_is_parked_until_there_are_records() -> None:
    bench = leader()
    assert bench.fetch(1, 0).sends(FetchResponse) == []
    result = fetched(bench.produce(acks=1), 1)
    assert (result.fetch_offset, result.leader_epoch, result.high_watermark) == (0, 0, 0)
    assert [b.base_offset for b in result.batches] == [0]
    assert not bench.produce(acks=1).sends(FetchResponse) or fetched(bench, 2), "an answered fetch is gone"


@pytest.mark.covers("A42")
def test_a_parked_follower_gets_the_new_high_watermark() -> None:
    bench = leader(isr=(0, 1))
    bench.produce(acks=1)
    bench.fetch(1, 1)
    result = fetched(bench, 1)
    assert (result.batches, result.high_watermark) == ((), 1)
    assert bench.fetch(1, 1, high_watermark=1).sends(FetchResponse) == []


FETCH_ERRORS = {
    "earlier leader epoch": ({"current_leader_epoch": 4}, ErrorCode.FENCED_LEADER_EPOCH),
    "later leader epoch": ({"current_leader_epoch": 6}, ErrorCode.UNKNOWN_LEADER_EPOCH),
    "not on this broker": ({"partition_id": 3}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
}


@pytest.mark.covers("A30")
@pytest.mark.parametrize(("fetch", "error"), FETCH_ERRORS.values(), ids=FETCH_ERRORS)
def test_an_invalid_fetch_is_refused_without_progress(fetch: dict[str, object], error: ErrorCode) -> None:
    bench = leader(leader_epoch=5, isr=(0, 1))
    bench.produce(acks=1)
    result = fetched(bench.fetch(1, 1, **fetch), 1)
    assert (result.error, result.batches) == (error, ())
    assert bench.high_watermark == 0


@pytest.mark.covers("A30")
@pytest.mark.parametrize(("partition", "follower"), [({"leader": 1}, 2), ({"replicas": (0, 1), "isr": (0, 1)}, 2)])
def test_fetches_by_strangers_or_to_a_follower_are_refused(partition: dict[str, object], follower: int) -> None:
    bench = leader(**partition)
    assert fetched(bench.fetch(follower, 0), follower).error is ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.covers("N1", "M43")
def test_a_diverging_follower_gets_the_diverging_epoch_and_no_progress() -> None:
    bench = leader(isr=(0, 1), leader_epoch=5)
    bench.produce(acks=1)
    result = fetched(bench.fetch(1, 3, epoch=4), 1)
    assert result.diverging_epoch is not None
    assert (result.diverging_epoch.leader_epoch, result.diverging_epoch.end_offset) == (-1, 0)
    assert bench.high_watermark == 0


@pytest.mark.covers("A48", "E2", "E3", "N6")
@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 3),
    st.lists(st.tuples(st.sampled_from(["produce", "fetch1", "fetch2"]), st.integers(0, 3)), max_size=15),
)
def test_committed_records_are_on_every_isr_member(min_isr: int, steps: list[tuple[str, int]]) -> None:
    bench, ends, before = leader(min_isr), {1: 0, 2: 0}, 0
    for kind, count in steps:
        if kind == "produce":
            bench.produce(acks=1, count=count + 1)
        else:
            follower = int(kind[-1])
            ends[follower] = min(ends[follower] + count, bench.replica.log.end_offset)
            bench.fetch(follower, ends[follower], epoch=-1 if ends[follower] == 0 else 0)
        assert before <= bench.high_watermark <= min(ends.values())
        before = bench.high_watermark
    assert bench.high_watermark == min(ends.values())


# -- ISR ---------------------------------------------------------------------------------------------------------------


@pytest.mark.covers("M48", "B12", "E11")
def test_an_isr_expansion_in_flight_holds_the_high_watermark() -> None:
    bench = leader(min_isr=1, isr=(0, 1))
    request = bench.fetch(2, 0).sent(AlterPartitionRequest)
    assert proposed(bench) == [0, 1, 2]
    bench.produce()
    assert bench.fetch(1, 1).sends(ProduceResponse) == []
    assert bench.high_watermark == 0
    answer(bench, request, error=ErrorCode.INELIGIBLE_REPLICA)
    assert bench.sent(ProduceResponse).error is ErrorCode.NONE
    assert bench.high_watermark == 1


@pytest.mark.covers("B11", "A48", "E11", "M47")
def test_an_isr_shrink_counts_once_it_is_committed() -> None:
    bench = leader(min_isr=1)
    bench.produce()
    bench.fetch(1, 1)
    request = bench.fire(f"{SILENT_PREFIX}2", at_ms=LAG_MS).sent(AlterPartitionRequest)
    assert proposed(bench) == [0, 1]
    assert bench.fetch(1, 1).sends(ProduceResponse) == []
    assert bench.high_watermark == 0
    assert answer(bench, request).sent(ProduceResponse).error is ErrorCode.NONE
    assert bench.high_watermark == 1


@pytest.mark.covers("B10")
def test_a_proposal_in_flight_delays_only_the_high_watermark() -> None:
    """Broker 2 is to leave, the controller is silent: requests are served, commits reach as far as broker 2."""
    bench = leader(min_isr=1)
    bench.fire(f"{SILENT_PREFIX}2", at_ms=LAG_MS)
    assert proposed(bench) == [0, 1]
    assert bench.produce(acks=1, count=2).sent(ProduceResponse).error is ErrorCode.NONE
    assert len(fetched(bench, 1).batches) == 1
    assert bench.fetch(1, 2).sends(AlterPartitionRequest) == []
    assert bench.fetch(2, 2, epoch=0).sends(AlterPartitionRequest) == []
    assert bench.high_watermark == 2
    assert len(consume(bench).batches) == 1


@pytest.mark.covers("A44")
def test_a_lag_is_looked_at_again_after_half_the_lag_time_while_a_proposal_is_in_flight() -> None:
    bench = leader(min_isr=1)
    bench.produce()
    bench.fire(f"{LAG_PREFIX}1", at_ms=LAG_MS)
    assert proposed(bench) == [0]
    timer = bench.timer(f"{LAG_PREFIX}1")
    assert timer is not None
    assert timer.at_ms == LAG_MS + LAG_MS // 2


@pytest.mark.covers("M51", "B18", "B19")
def test_a_proposal_on_an_old_partition_epoch_is_refused_and_made_again() -> None:
    """The controller has fenced broker 2, which the leader does not know yet when it proposes to remove broker 1."""
    bench = leader(min_isr=1)
    controller = ControllerBench(*registrations(), *topic_records(1))
    news = controller.apply(fence(controller.state, 2, 2))
    request = bench.fire(f"{SILENT_PREFIX}1", at_ms=LAG_MS).sent(AlterPartitionRequest)
    answer_of(bench, controller, request)
    leadership = bench.replica.leadership
    assert leadership is not None
    assert (leadership.isr, leadership.proposed_isr) == ((0, 1, 2), (0, 2))
    assert bench.sends(AlterPartitionRequest) == [], "it waits for what it has not seen"
    bench.publish(*news)
    assert (leadership.isr, leadership.proposed_isr) == ((0, 1), None)
    request = bench.fire(f"{SILENT_PREFIX}1", at_ms=2 * LAG_MS).sent(AlterPartitionRequest)
    assert proposed(bench) == [0]
    bench.publish(*answer_of(bench, controller, request))
    assert leadership.isr == controller.partition().isr == (0,)
    assert leadership.partition_epoch == controller.partition().partition_epoch


def answer_of(
    bench: BrokerBench, controller: ControllerBench, request: AlterPartitionRequest
) -> list[PartitionChangeRecord]:
    """The controller decides on the one proposal and the broker receives the response; returns the records written."""
    [error], records = decide(controller.state, request)
    controller.apply(records)
    response = result(controller.state.image, 0, request.partitions[0], error)
    bench.receive(CONTROLLER, AlterPartitionResponse(correlation_id=request.correlation_id, partitions=(response,)))
    return records


@pytest.mark.covers("E11", "M6")
def test_a_lower_min_isr_moves_the_high_watermark() -> None:
    bench = leader(isr=(0,))
    bench.produce(acks=1)
    assert bench.high_watermark == 0
    bench.publish(ConfigRecord(topic_id="T", name="min.insync.replicas", value="1"))
    assert bench.high_watermark == 1


@pytest.mark.covers("E8", "M5")
def test_a_min_isr_above_the_replica_count_does_not_stop_the_partition() -> None:
    bench = leader(min_isr=3, replicas=(0,), isr=(0,))
    assert bench.produce().sent(ProduceResponse).error is ErrorCode.NONE
    assert len(consume(bench).batches) == 1
    old = leader(min_isr=3, generation=Generation.KIP_497, replicas=(0,), isr=(0,))
    assert old.produce().sent(ProduceResponse).error is ErrorCode.NOT_ENOUGH_REPLICAS


@pytest.mark.covers("A45", "B6", "N5")
def test_a_follower_is_proposed_when_it_is_caught_up_and_known_to_be_active() -> None:
    bench = leader(isr=(0, 1), records=2)
    assert bench.fetch(2, 1).sends(AlterPartitionRequest) == []
    assert bench.fetch(2, 2, replica_epoch=1).sends(AlterPartitionRequest) == [], "not the epoch that is registered"
    bench.publish(fencing(2, 2, True))
    parked = {"high_watermark": bench.high_watermark}
    assert bench.fetch(2, 2, **parked).sends(AlterPartitionRequest) == []
    bench.publish(fencing(2, 2, False))
    assert proposed(bench) == [0, 1, 2], "a parked fetch is looked at again when the metadata changes"


@pytest.mark.covers("M41", "A47")
def test_a_silent_follower_leaves_the_isr_without_any_produce() -> None:
    bench = leader()
    timer = bench.fetch(1, 0).timer(f"{SILENT_PREFIX}1")
    assert timer is not None
    assert (timer.at_ms, timer.idle_with) == (LAG_MS, 1)
    bench.fire(f"{SILENT_PREFIX}1", at_ms=LAG_MS)
    assert proposed(bench) == [0, 2]


@pytest.mark.covers("M41", "A47")
def test_a_follower_that_never_fetches_in_a_leader_epoch_leaves_the_isr() -> None:
    config = config_of(replica_lag_time_max_ms=LAG_MS)
    bench = BrokerBench(config=config).run()
    timer = bench.publish(*topic_records(1)).timer(f"{LAG_PREFIX}1")
    assert timer is not None
    assert timer.at_ms == LAG_MS
    bench.fire(f"{LAG_PREFIX}1", at_ms=LAG_MS)
    assert proposed(bench) == [0]


@pytest.mark.covers("M40", "A44")
def test_a_lagging_follower_leaves_the_isr_and_joins_again() -> None:
    bench = leader(min_isr=1, isr=(0, 1))
    for now_ms in range(0, LAG_MS + 1, 250):
        bench.now_ms = now_ms
        bench.produce(acks=1, count=10)
        bench.fetch(1, now_ms // 250 + 1)
    request = bench.fire(f"{LAG_PREFIX}1", at_ms=LAG_MS).sent(AlterPartitionRequest)
    assert proposed(bench) == [0]
    answer(bench, request)
    assert bench.high_watermark == 50
    assert bench.fetch(1, 49).sends(AlterPartitionRequest) == []
    bench.fetch(1, 50)
    assert proposed(bench) == [0, 1]


def test_a_parked_follower_stays_in_the_isr() -> None:
    bench = leader()
    bench.fire(f"{LAG_PREFIX}1", at_ms=50 * LAG_MS)
    assert bench.sends(AlterPartitionRequest) == []


@pytest.mark.covers("E16")
def test_a_leader_behaves_the_same_for_every_elr() -> None:
    """The leader's effects do not depend on the ELR."""

    def course(elr: tuple[int, ...]) -> list[object]:
        bench = leader(isr=(0,), eligible_leader_replicas=elr)
        effects: list[object] = list(bench.produce(acks=1).effects)
        effects += bench.fetch(2, 1).effects
        return effects + bench.fetch(1, 1).effects + bench.fire(f"{SILENT_PREFIX}2", at_ms=LAG_MS).effects

    assert course(()) == course((1,)) == course((1, 2))


# -- change of leadership ----------------------------------------------------------------------------------------------


@pytest.mark.covers("A27", "A30")
def test_a_resigning_leader_answers_all_waiting_requests() -> None:
    bench = leader()
    bench.produce(correlation_id=8)
    bench.fetch(1, 1)
    bench.publish(change(leader=1, isr=(1, 2)))
    response = bench.sent(ProduceResponse)
    assert (response.error, response.base_offset) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 0)
    assert fetched(bench, 1).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert bench.replica.leadership is None
    assert bench.replica.fetch_state is not None, "it follows the new leader"


@pytest.mark.covers("C5", "C8", "C11")
def test_a_recovering_leader_clears_its_state_before_followers_join() -> None:
    config = config_of(replica_lag_time_max_ms=LAG_MS)
    bench = BrokerBench(config=config).run()
    request = bench.publish(*topic_records(1, isr=(0,), leader_recovery_state=1)).sent(AlterPartitionRequest)
    [proposal] = request.partitions
    assert (proposed(bench), proposal.leader_recovery_state) == ([0], 0)
    assert bench.fetch(2, 0).sends(AlterPartitionRequest) == []
    answer(bench, request)
    assert proposed(bench) == [0, 2]


@pytest.mark.covers("N5", "E26")
def test_followers_join_when_they_reach_the_start_of_the_leader_epoch() -> None:
    bench = leader(min_isr=1, isr=(0,), records=5)
    bench.publish(change(leader=1), change(leader=0, isr=(0,)))
    assert bench.fetch(1, 4, epoch=0).sends(AlterPartitionRequest) == []
    bench.fetch(1, 5, epoch=0)
    assert proposed(bench) == [0, 1]
