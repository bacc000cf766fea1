"""A broker as partition leader: what always holds, and the controller beside it. Examples: `testdata/leader.txt`."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.broker.isr_manager import SILENT_PREFIX
from protocol.controller.alter_partition import decide, result
from protocol.controller.brokers import fence
from protocol.features import Generation
from protocol.messages.control import AlterPartitionRequest, AlterPartitionResponse
from protocol.messages.records import PartitionChangeRecord
from tests.unit.protocol.node_helpers import (
    CONTROLLER,
    BrokerBench,
    ControllerBench,
    config_of,
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


def proposed(bench: BrokerBench) -> list[int]:
    """The ISR of the one proposal that the last input sent."""
    [proposal] = bench.sent(AlterPartitionRequest).partitions
    return [member.broker_id for member in proposal.new_isr]


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


@pytest.mark.covers("E16")
def test_a_leader_behaves_the_same_for_every_elr() -> None:
    """The leader's effects do not depend on the ELR."""

    def course(elr: tuple[int, ...]) -> list[object]:
        bench = leader(isr=(0,), eligible_leader_replicas=elr)
        effects: list[object] = list(bench.produce(acks=1).effects)
        effects += bench.fetch(2, 1).effects
        return effects + bench.fetch(1, 1).effects + bench.fire(f"{SILENT_PREFIX}2", at_ms=LAG_MS).effects

    assert course(()) == course((1,)) == course((1, 2))
