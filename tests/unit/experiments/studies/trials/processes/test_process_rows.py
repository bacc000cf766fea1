"""The trace of a recorded trial: in the order of time and causes, with the measurements of clients."""

from __future__ import annotations

import pytest

from experiments.engines.port import TraceEvent
from experiments.studies.design.model import CellParameters
from experiments.studies.design.placement import TOPIC
from experiments.studies.trace.kinds import (
    Acknowledged,
    AcknowledgedLoss,
    Acks1Loss,
    Crash,
    End,
    Failover,
    Loss,
    Restarted,
    Start,
    State,
    Throughput,
)
from experiments.studies.trace.schema import TraceRow
from experiments.studies.trials.processes.rows import Failed, Lost, Started, TrialEvents, trace_rows
from protocol.events.base import Trace
from protocol.events.broker import BecameLeader
from protocol.events.controller import BrokerRegistered
from protocol.events.node import ProduceCompleted
from protocol.ids import FIRST_CLIENT, FIRST_CONTROLLER, NodeId, TimeMs, TopicPartition
from tests.trace_rows import as_rows, check_trace
from tests.unit.partition_events import partition_changed

T0 = TopicPartition(TOPIC, 0)
BEGINS_MS, ENDS_MS = 1_000, 9_000


def rows_of(found: TrialEvents, cell: CellParameters) -> list[TraceRow]:
    """The rows of the trace, as files have them."""
    return as_rows(trace_rows(found, cell))


def changed(at_ms: TimeMs, leader: NodeId, epoch: int, isr: tuple[NodeId, ...]) -> TraceEvent:
    return TraceEvent(at_ms, FIRST_CONTROLLER, partition_changed(TOPIC, leader, epoch, epoch, isr))


def leads(at_ms: TimeMs, node: NodeId, epoch: int) -> TraceEvent:
    return TraceEvent(at_ms, node, BecameLeader(T0, leader_epoch=epoch, log_end=0, high_watermark=0))


def acked(at_ms: TimeMs, command_id: int, error: str = "NONE") -> TraceEvent:
    trace = ProduceCompleted(T0, command_id=command_id, acks=-1, error=error, unknown=False, base_offset=command_id)
    return TraceEvent(at_ms, FIRST_CLIENT, trace)


def registered(at_ms: TimeMs, broker: NodeId, fenced: bool) -> TraceEvent:
    trace: Trace = BrokerRegistered(broker, broker_epoch=1, fenced=fenced, in_controlled_shutdown=False)
    return TraceEvent(at_ms, FIRST_CONTROLLER, trace)


def recording(**fields: object) -> TrialEvents:
    """A cluster that leader 0 of epoch 0 serves before the measurement begins."""
    events = [changed(500, 0, 0, (0, 1)), leads(510, 0, 0)]
    found = TrialEvents(begins_ms=BEGINS_MS, ends_ms=ENDS_MS, throughput=1_234)
    for name, value in fields.items():
        setattr(found, name, [*events, *value] if name == "events" and isinstance(value, list) else value)
    return found


def without(rows: list[TraceRow], *kinds: str) -> list[tuple[int, str, int, int]]:
    return [(row.time_ms, row.kind, row.node, row.value) for row in rows if row.kind not in kinds]


def test_what_came_before_the_measurement_is_the_first_state_and_what_comes_after_it_is_left_out() -> None:
    rows = rows_of(recording(events=[changed(ENDS_MS, 1, 1, (1,))]), CellParameters())
    check_trace(rows, 1, ENDS_MS - BEGINS_MS)
    assert [row.kind for row in rows] == [State.KIND, Throughput.KIND, End.KIND]
    assert (rows[0].leader, rows[0].leader_serves, rows[0].isr_size) == (0, True, 2)
    assert rows[1].value == 1_234


def test_failover_lasts_from_the_crash_to_the_first_acknowledgement_that_the_dead_broker_cannot_have_sent() -> None:
    found = recording(
        events=[
            acked(2_010, 1),
            acked(2_900, 2, "NOT_ENOUGH_REPLICAS"),
            changed(4_000, 1, 1, (1,)),
            leads(4_003, 1, 1),
            acked(4_050, 3),
            acked(4_150, 4),
        ],
        sent_ms={1: 1_990, 2: 2_100, 3: 2_950, 4: 4_140},
        injected=[Failed(2_000, 2_030, 0, "unclean")],
    )
    rows = rows_of(found, CellParameters())
    check_trace(rows, 1, ENDS_MS - BEGINS_MS)
    assert without(rows, State.KIND, Throughput.KIND, End.KIND) == [
        (1_000, Crash.KIND, 0, 0),
        (1_010, Acknowledged.KIND, -1, 20),
        (3_050, Acknowledged.KIND, -1, 1_100),
        (3_050, Failover.KIND, 0, 2_050),
        (3_150, Acknowledged.KIND, -1, 10),
    ]
    states = [(row.time_ms, row.leader, row.leader_serves) for row in rows if row.kind == State.KIND]
    assert states == [(0, 0, True), (1_000, 0, False), (3_000, 1, False), (3_003, 1, True)]


def test_a_restart_lasts_until_the_broker_is_unfenced() -> None:
    found = recording(
        events=[registered(6_000, 0, True), registered(6_500, 0, False), registered(7_000, 0, False)],
        injected=[Failed(2_000, 2_030, 0, "clean"), Started(5_000, 0)],
    )
    rows = rows_of(found, CellParameters())
    assert without(rows, State.KIND, Throughput.KIND, End.KIND) == [
        (1_000, Crash.KIND, 0, 0),
        (4_000, Start.KIND, 0, 0),
        (5_500, Restarted.KIND, 0, 1_500),
    ]
    assert all(row.leader_serves for row in rows if row.kind == State.KIND), "a controlled shutdown hands over first"


def test_events_of_nodes_that_report_late_or_whose_clocks_differ_are_put_in_the_order_of_causes() -> None:
    late = recording(
        events=[leads(3_998, 1, 1), changed(4_000, 1, 1, (1,))],
        injected=[Failed(2_000, 2_030, 0, "lossy")],
        losses=[Lost(3_998, T0, 1, 7)],
    )
    rows = rows_of(late, CellParameters())
    check_trace(rows, 1, ENDS_MS - BEGINS_MS)
    assert [(row.leader, row.leader_serves) for row in rows if row.kind == State.KIND][-1] == (1, True)
    assert without(rows, State.KIND, Throughput.KIND, End.KIND) == [
        (1_000, Crash.KIND, 0, 0),
        (2_998, Loss.KIND, 1, 7),
        (2_998, AcknowledgedLoss.KIND, 1, 7),
    ]
    with_acks_1 = rows_of(late, CellParameters(acks="1"))
    assert without(with_acks_1, State.KIND, Throughput.KIND, End.KIND, Crash.KIND) == [
        (2_998, Acks1Loss.KIND, 1, 7),
        (2_998, AcknowledgedLoss.KIND, 1, 7),
    ]


@pytest.mark.parametrize(
    ("acks", "leader", "kind", "expected"),
    [
        ("all", 1, "unclean", []),
        ("1", 1, "unclean", [(3_000, AcknowledgedLoss.KIND, 1, 0)]),
        ("1", 0, "unclean", []),
        ("1", 1, "clean", []),
    ],
)
def test_with_acks_1_another_leader_after_a_crash_lacks_what_no_follower_had_fetched(
    acks: str, leader: int, kind: str, expected: list[tuple[int, str, int, int]]
) -> None:
    found = recording(
        events=[changed(3_500, 0, 0, (0, 2)), changed(4_000, leader, 1, (leader,)), leads(4_003, leader, 1)],
        injected=[Failed(2_000, 2_030, 0, kind)],
    )
    cell = CellParameters.model_validate({"acks": acks})
    assert without(rows_of(found, cell), State.KIND, Throughput.KIND, End.KIND, Crash.KIND) == expected


def test_an_election_that_lost_records_in_flight_and_others_counts_once() -> None:
    found = recording(
        events=[changed(4_000, 1, 1, (1,)), leads(4_003, 1, 1)],
        injected=[Failed(2_000, 2_030, 0, "lossy")],
        losses=[Lost(4_003, T0, 1, 7)],
    )
    rows = rows_of(found, CellParameters(acks="1"))
    assert [row.value for row in rows if row.kind == AcknowledgedLoss.KIND] == [0]
    assert [row.value for row in rows if row.kind == Acks1Loss.KIND] == [7]
