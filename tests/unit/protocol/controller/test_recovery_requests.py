"""The recoveries that a controller requests: need, requests and cancellations, valid results, awaited elections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import pytest

from experiments.engines import admin_requests
from protocol.config import Generation
from protocol.contract import Outbox, Send, SetTimer
from protocol.controller import brokers
from protocol.controller.administration import handle
from protocol.controller.awaited_elections import ELECTIONS_TIMER, Awaited
from protocol.controller.recovery_decisions import RecoveryNeed, recovery_need, strategy_query
from protocol.controller.recovery_requests import RECOVERY_TIMER, RecoveryRequests
from protocol.errors import ErrorCode
from protocol.events.base import Trace
from protocol.ids import NO_LEADER, RECOVERY_MANAGER
from protocol.messages.base import Message
from protocol.messages.cluster import UpgradeType
from protocol.messages.control import BrokerState
from protocol.messages.partitions import ElectLeadersResponse, PartitionResult
from protocol.messages.records import (
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    UnregisterBrokerRecord,
)
from protocol.messages.recovery import (
    CancelRecoveries,
    PartitionRecovery,
    PartitionRecoveryResult,
    RecoverPartitions,
    RecoveryMode,
    RecoveryResults,
    ReplicaAnswer,
)
from protocol.metadata.image import MetadataDelta
from protocol.metadata.partition import LeaderRecoveryState
from tests.unit.protocol.node_helpers import (
    CLIENT,
    T0,
    ControllerBench,
    config_of,
    fencing,
    registrations,
    topic_records,
)

LOST = {"isr": (), "leader": NO_LEADER, "leader_epoch": 4}
M = TypeVar("M", bound=Message)


def strategy(value: str | None, topic: str | None = "T") -> ConfigRecord:
    return ConfigRecord(topic_id=topic, name="unclean.recovery.strategy", value=value)


class Bench(ControllerBench):
    """A controller's state and its recoveries, without the node around them; brokers 0, 1, 2 and a fenced 3."""

    def __init__(
        self,
        *records: MetadataRecord,
        fenced: Sequence[int] = (3,),
        generation: Generation = Generation.KIP_966,
        **lost: object,
    ) -> None:
        self.out = Outbox()
        self.effects: list[object] = []
        self.now_ms = 0
        self.recoveries: RecoveryRequests | None = None
        base = [*registrations((0, 1, 2, 3), fenced), *topic_records(2, **LOST | lost)]
        super().__init__(*base, *records, config=config_of(generation))
        self.recoveries = RecoveryRequests(self.state, self.out)
        self.apply([])
        self.recoveries.replayed(self.everything())
        self.settle()

    def everything(self) -> MetadataDelta:
        delta = self.state.image.take_delta()
        delta.features = True
        return delta

    def apply(self, records: Sequence[MetadataRecord]) -> Sequence[MetadataRecord]:
        for record in records:
            delta = self.state.replay(record)
            if self.recoveries is not None:
                self.recoveries.replayed(delta)
        return records

    def happens(self, *records: MetadataRecord) -> Bench:
        self.apply(records)
        return self.settle()

    def settle(self) -> Bench:
        assert self.recoveries is not None
        self.recoveries.settle(self.now_ms)
        self.effects = list(self.out.drain())
        return self

    def fire(self, name: str, at_ms: int) -> Bench:
        assert self.recoveries is not None
        self.now_ms = at_ms
        self.recoveries.fire(at_ms, name)
        self.effects = list(self.out.drain())
        return self

    def take(self, result: PartitionRecoveryResult) -> list[MetadataRecord]:
        assert self.recoveries is not None
        records = self.recoveries.take(RecoveryResults(results=(result,)))
        self.effects = list(self.out.drain())
        return records

    def await_election(self, mode: RecoveryMode, timeout_ms: int = 60_000) -> Bench:
        assert self.recoveries is not None
        response = ElectLeadersResponse(correlation_id=1, partitions=(PartitionResult(topic="t", partition_index=0),))
        self.recoveries.await_elections(self.now_ms, CLIENT, response, Awaited(mode, timeout_ms, {T0: 0}))
        return self.settle()

    def sends(self, kind: type[M]) -> list[tuple[int, M]]:
        return [(e.to, e.message) for e in self.effects if isinstance(e, Send) and isinstance(e.message, kind)]

    @property
    def requested(self) -> PartitionRecovery | None:
        """The recovery that the last event requested."""
        found = [message for to, message in self.sends(RecoverPartitions) if to == RECOVERY_MANAGER]
        return found[0].recoveries[0] if found else None

    @property
    def cancelled(self) -> bool:
        return bool(self.sends(CancelRecoveries))

    @property
    def answered(self) -> ErrorCode | None:
        """How the user's election ended, if the last event ended it."""
        found = self.sends(ElectLeadersResponse)
        return found[0][1].partitions[0].error if found else None

    def traces(self, kind: str) -> list[Trace]:
        return [effect for effect in self.effects if isinstance(effect, Trace) and effect.kind == kind]


def result(recovery: PartitionRecovery, leader: int, *answers: int, **changed: object) -> PartitionRecoveryResult:
    """Elect `leader`, with answers under the broker epochs that the recovery names."""
    epochs = {replica.broker_id: replica.broker_epoch for replica in recovery.replicas}
    reported = tuple(
        ReplicaAnswer(broker_id=each, broker_epoch=epochs[each], last_written_leader_epoch=3, log_end_offset=each)
        for each in answers or epochs
    )
    return replace(
        PartitionRecoveryResult(
            recovery_id=recovery.recovery_id,
            topic_id="T",
            partition_id=0,
            leader_epoch=recovery.leader_epoch,
            leader=leader,
            reason="",
            answers=reported,
        ),
        **changed,
    )


# -- the decision ------------------------------------------------------------------------------------------------------

KEPT: dict[str, dict[str, object]] = {
    "eligible": {"eligible_leader_replicas": (3,), "last_known_elr": (0,)},
    "last known, active": {"last_known_elr": (0, 1)},
    "last known, one fenced": {"last_known_elr": (0, 3)},
    "no replica": {},
    "a leader": {"leader": 0, "isr": (0,)},
}
NEEDS = {
    ("eligible", "proactive"): RecoveryNeed.RECOVERY,
    ("eligible", "balanced"): RecoveryNeed.ELIGIBLE,
    ("eligible", "manual"): RecoveryNeed.ELIGIBLE,
    ("last known, active", "proactive"): RecoveryNeed.RECOVERY,
    ("last known, active", "balanced"): RecoveryNeed.RECOVERY,
    ("last known, active", "manual"): RecoveryNeed.USER,
    ("last known, one fenced", "proactive"): RecoveryNeed.RECOVERY,
    ("last known, one fenced", "balanced"): RecoveryNeed.LAST_KNOWN,
    ("last known, one fenced", "manual"): RecoveryNeed.USER,
    ("no replica", "proactive"): RecoveryNeed.RECOVERY,
    ("no replica", "balanced"): RecoveryNeed.USER,
    ("no replica", "manual"): RecoveryNeed.USER,
    ("a leader", "proactive"): RecoveryNeed.NOTHING,
}


@pytest.mark.covers("F2", "F3", "F4", "F29", "H3", "M59", "M62", "M63")
@pytest.mark.parametrize(("kept", "value"), NEEDS)
def test_what_a_partition_needs(kept: str, value: str) -> None:
    found = Bench(strategy(value), replicas=(0, 1, 2, 3), **KEPT[kept])
    assert recovery_need(found.state.image, T0, found.partition()) is NEEDS[kept, value]
    assert (found.requested is not None) is (NEEDS[kept, value] is RecoveryNeed.RECOVERY)


@pytest.mark.covers("F25", "H4", "K8")
def test_nothing_is_recovered_where_recovery_is_disabled() -> None:
    found = Bench(strategy("proactive"), generation=Generation.KIP_966_ELR)
    assert recovery_need(found.state.image, T0, found.partition()) is RecoveryNeed.NOTHING


@pytest.mark.covers("F11", "F13", "H5")
def test_active_replicas_are_queried_in_the_order_of_the_assignment_and_the_last_known_elr_is_required() -> None:
    timeout = ConfigRecord(topic_id=None, name="unclean.recovery.timeout.ms", value="777")
    found = Bench(timeout, fenced=(3,), replicas=(2, 3, 0), last_known_elr=(0,))
    assert found.requested is not None
    assert found.requested.replicas == (
        BrokerState(broker_id=2, broker_epoch=2),
        BrokerState(broker_id=0, broker_epoch=0),
    )
    assert (found.requested.mode, found.requested.required) == (RecoveryMode.BALANCED, (0,))
    assert (found.requested.leader_epoch, found.requested.timeout_ms) == (4, 777)
    shutting_down = brokers.begin_controlled_shutdown(found.state, 2, 2)
    found.apply(shutting_down)
    asked = strategy_query(found.state.image, T0, found.partition())
    assert asked is not None
    assert [replica.broker_id for replica in asked.replicas] == [0], "one that shuts down cannot lead"


@pytest.mark.covers("F12")
def test_there_is_no_recovery_while_no_replica_is_active() -> None:
    found = Bench(strategy("proactive"), fenced=(0, 1, 2, 3))
    assert found.requested is None
    found.happens(*brokers.unfence(found.state, 1, 1))
    assert found.requested is not None


ADDED = {"replicas": (3, 2, 0, 1), "adding_replicas": (3, 2), "removing_replicas": (0, 1)}
UNREGISTERED = [UnregisterBrokerRecord(broker_id=broker, broker_epoch=broker) for broker in (0, 1)]
HOLDERS: dict[str, tuple[dict[str, object], Sequence[MetadataRecord], tuple[int, ...]]] = {
    "fenced replicas": ({"replicas": (2, 3, 0)}, (), (2, 3, 0)),
    "no adding replicas": (ADDED, (), (0, 1)),
    "an adding replica in the last known ELR": (ADDED | {"last_known_elr": (2, 1)}, (), (2, 0, 1)),
    "an adding replica in the ELR": (ADDED | {"eligible_leader_replicas": (3,)}, (), (3, 0, 1)),
    "no unregistered replicas": (ADDED, UNREGISTERED[:1], (1,)),
    "adding replicas where no other is registered": (ADDED, UNREGISTERED, (3, 2)),
}


@pytest.mark.covers("F12")
@pytest.mark.parametrize(("state", "records", "holders"), HOLDERS.values(), ids=HOLDERS)
def test_replicas_that_may_hold_the_most_records(
    state: dict[str, object], records: Sequence[MetadataRecord], holders: tuple[int, ...]
) -> None:
    found = Bench(strategy("proactive"), *records, **state)
    assert found.requested is not None
    assert found.requested.holders == holders


@pytest.mark.covers("F12")
def test_a_reassignment_of_a_leaderless_partition_begins_no_recovery_among_what_it_adds() -> None:
    found = Bench(strategy("proactive"), fenced=(0, 1), **ADDED)
    assert found.requested is None
    found.happens(*brokers.unfence(found.state, 1, 1))
    running = found.requested
    assert running is not None
    assert [replica.broker_id for replica in running.replicas] == [3, 2, 1]
    assert found.take(result(running, 3, 3, 2)) == [], "no holder has answered"
    assert found.take(result(running, 3, 3, 2, 1)) != [], "what is added may hold more"


# -- requests ----------------------------------------------------------------------------------------------------------


@pytest.mark.covers("F13", "N27")
def test_a_replica_that_becomes_active_joins_the_running_recovery() -> None:
    found = Bench(strategy("proactive"), fenced=(1, 2, 3))
    first = found.requested
    found.happens(*brokers.unfence(found.state, 2, 2))
    assert first is not None
    assert found.requested is not None
    assert found.requested.recovery_id == first.recovery_id
    assert [replica.broker_id for replica in found.requested.replicas] == [0, 2]
    assert found.traces("recovery_began") == []


@pytest.mark.covers("F4", "M59")
def test_a_balanced_recovery_is_cancelled_while_a_required_replica_is_fenced() -> None:
    found = Bench(last_known_elr=(0, 1))
    first = found.requested
    found.happens(fencing(1, 1, True))
    assert found.cancelled
    assert not found.requested
    found.happens(*brokers.unfence(found.state, 1, 1))
    assert first is not None
    assert found.requested is not None
    assert found.requested.recovery_id != first.recovery_id


@pytest.mark.covers("F9")
def test_another_leader_epoch_or_mode_is_another_recovery() -> None:
    found = Bench(last_known_elr=(0, 1))
    seen = [found.requested]
    found.happens(PartitionChangeRecord(topic_id="T", partition_id=0, leader=NO_LEADER))
    seen.append(found.requested)
    found.happens(strategy("proactive"))
    seen.append(found.requested)
    assert len({each.recovery_id for each in seen if each is not None}) == 3
    assert [each.leader_epoch for each in seen if each is not None] == [4, 5, 5]


@pytest.mark.covers("H8", "M73")
@pytest.mark.parametrize(
    "record",
    [
        strategy("manual"),
        FeatureLevelRecord(name="unclean.recovery.enabled", feature_level=0),
        PartitionChangeRecord(topic_id="T", partition_id=0, leader=2, isr=(2,)),
    ],
    ids=["a user must act", "disabled", "a leader"],
)
def test_a_recovery_that_the_metadata_no_longer_calls_for_is_cancelled(record: MetadataRecord) -> None:
    found = Bench(last_known_elr=(0, 1))
    assert found.requested is not None
    found.happens(record)
    assert found.cancelled
    assert not found.requested


@pytest.mark.covers("F16", "M72")
def test_an_eligible_replica_that_becomes_active_leads_and_ends_a_proactive_recovery() -> None:
    found = Bench(strategy("proactive"), replicas=(0, 1, 3), eligible_leader_replicas=(3,))
    running = found.requested
    assert running is not None
    found.happens(*brokers.unfence(found.state, 3, 3))
    assert (found.partition().leader, found.cancelled) == (3, True)
    assert found.take(result(running, 0)) == []
    assert found.partition().leader_recovery_state is LeaderRecoveryState.RECOVERED


@pytest.mark.covers("F14", "M70")
def test_running_recoveries_are_requested_again_until_they_are_over() -> None:
    found = Bench(last_known_elr=(0, 1))
    first = found.requested
    [timer] = [effect for effect in found.effects if isinstance(effect, SetTimer)]
    assert (timer.name, timer.at_ms) == (RECOVERY_TIMER, 2_000)
    found.fire(RECOVERY_TIMER, 2_000)
    assert found.requested == first
    assert [effect.at_ms for effect in found.effects if isinstance(effect, SetTimer)] == [4_000]


@pytest.mark.covers("F15", "M68")
def test_a_new_controller_has_recoveries_of_its_own() -> None:
    found = Bench(last_known_elr=(0, 1))
    first = found.requested
    found.recoveries = RecoveryRequests(found.state, found.out)
    found.recoveries.replayed(found.everything())
    found.settle()
    assert first is not None
    assert found.requested is not None
    assert found.requested.recovery_id != first.recovery_id


# -- results -----------------------------------------------------------------------------------------------------------


@pytest.mark.covers("F17", "C12", "I8")
def test_a_valid_result_elects_uncleanly() -> None:
    found = Bench(last_known_elr=(0, 1), last_known_leader=1)
    assert found.requested is not None
    found.happens(*found.take(result(found.requested, 2)))
    state = found.partition()
    assert (state.leader, state.isr, state.elr, state.last_known_leader, state.leader_epoch) == (2, (2,), (), -1, 5)
    assert state.leader_recovery_state is LeaderRecoveryState.RECOVERING


@pytest.mark.covers("F27")
def test_a_recovery_traces_its_answers_and_its_winner() -> None:
    found = Bench(fenced=(2, 3), last_known_elr=(0,))
    assert found.requested is not None
    found.take(result(found.requested, 0, 0, reason="it alone answered", silent=(1,)))
    [trace] = found.traces("recovery")
    assert trace.answers == ((0, 0, 3, 0),)
    assert (trace.leader, trace.reason) == (0, "it alone answered")
    assert (trace.silent, trace.absent, trace.required) == ((1,), (2,), (0,))


@pytest.mark.covers("F8", "F9", "F11", "F13", "F16", "M65", "M67", "M72")
@pytest.mark.parametrize(
    ("records", "changed", "answers"),
    [
        ((), {"leader_epoch": 3}, (0, 1, 2)),
        ((), {"recovery_id": 1}, (0, 1, 2)),
        ((), {}, (0, 2)),
        ((), {}, (0, 1)),
        ((fencing(2, 2, True),), {}, (0, 1, 2)),
        ((PartitionChangeRecord(topic_id="T", partition_id=0, leader=1, isr=(1,)),), {}, (0, 1, 2)),
        ((PartitionChangeRecord(topic_id="T", partition_id=0, leader=NO_LEADER),), {}, (0, 1, 2)),
    ],
    ids=[
        "another leader epoch",
        "another recovery",
        "one who had to be heard is missing",
        "the winner has not answered",
        "the winner is fenced",
        "a leader",
        "the leader epoch has risen since",
    ],
)
def test_an_invalid_result_elects_no_leader(
    records: tuple[MetadataRecord, ...], changed: dict[str, object], answers: tuple[int, ...]
) -> None:
    found = Bench(last_known_elr=(0, 1))
    assert found.requested is not None
    reported = result(found.requested, 2, *answers, **changed)
    found.apply(records)
    assert found.take(reported) == []


@pytest.mark.covers("F8", "M65")
def test_an_answer_of_an_earlier_incarnation_elects_no_leader() -> None:
    found = Bench(last_known_elr=(0, 1))
    assert found.requested is not None
    reported = result(found.requested, 0)
    found.happens(*brokers.register(found.state, 0, "again", -1, None))
    assert found.take(reported) == []
    epoch = found.state.image.broker_epoch(0)
    assert epoch is not None
    found.happens(*brokers.unfence(found.state, 0, epoch))
    assert found.take(reported) == [], "nor once it is unfenced"
    assert found.requested is None or found.requested.replicas[0].broker_epoch == epoch


# -- elections that users await ----------------------------------------------------------------------------------------


@pytest.mark.covers("F22", "J4")
def test_an_awaited_election_is_answered_when_it_has_happened() -> None:
    found = Bench(strategy("manual"), last_known_elr=(0, 1))
    assert found.requested is None
    found.await_election(RecoveryMode.PROACTIVE)
    assert (found.answered, found.requested is not None) == (None, True)
    assert found.requested is not None
    assert found.requested.mode is RecoveryMode.PROACTIVE
    found.happens(*found.take(result(found.requested, 2)))
    assert (found.answered, found.cancelled, found.partition().leader) == (ErrorCode.NONE, True, 2)


@pytest.mark.covers("F22")
@pytest.mark.parametrize(
    ("record", "error"),
    [
        (fencing(1, 1, True), ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE),
        (
            FeatureLevelRecord(name="unclean.recovery.enabled", feature_level=0),
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ),
        (PartitionChangeRecord(topic_id="T", partition_id=0, leader=1, isr=(1,)), ErrorCode.NONE),
    ],
)
def test_an_awaited_election_ends_with_what_ends_its_recovery(record: MetadataRecord, error: ErrorCode) -> None:
    found = Bench(strategy("manual"), last_known_elr=(0, 1)).await_election(RecoveryMode.BALANCED)
    assert found.requested is not None
    found.happens(record)
    assert (found.answered, found.cancelled) == (error, True)


@pytest.mark.covers("F22", "G27")
def test_an_awaited_election_times_out_and_its_recovery_with_it() -> None:
    found = Bench(strategy("manual"), last_known_elr=(0, 1)).await_election(RecoveryMode.BALANCED, 3_000)
    found.fire(ELECTIONS_TIMER, 2_999)
    assert (found.answered, found.cancelled) == (None, False)
    found.fire(ELECTIONS_TIMER, 3_000)
    assert (found.answered, found.cancelled) == (ErrorCode.REQUEST_TIMED_OUT, True)


def test_a_recovery_that_the_strategy_calls_for_outlasts_the_request_of_a_user() -> None:
    found = Bench(last_known_elr=(0, 1)).await_election(RecoveryMode.BALANCED, 3_000)
    assert found.requested is None, "it runs already"
    found.fire(ELECTIONS_TIMER, 3_000)
    assert (found.answered, found.cancelled) == (ErrorCode.REQUEST_TIMED_OUT, False)


# -- when recovery is disabled -----------------------------------------------------------------------------------------


@pytest.mark.covers("K5", "K6", "M73")
@pytest.mark.parametrize(("value", "leader"), [("balanced", 1), ("manual", 1), ("proactive", 1)])
def test_disabling_recovery_elects_by_the_rules_of_the_first_phase_at_once(value: str, leader: int) -> None:
    found = Bench(strategy(value), last_known_elr=(1, 3), last_known_leader=leader)
    disable = admin_requests.update_feature("unclean.recovery.enabled", 0, UpgradeType.SAFE_DOWNGRADE)
    found.happens(*handle(found.state, disable).records)
    assert (found.partition().leader, found.partition().isr) == (leader, (leader,))


@pytest.mark.covers("K6", "M73")
def test_without_the_last_known_leader_only_an_unclean_election_by_config_elects() -> None:
    disable = admin_requests.update_feature("unclean.recovery.enabled", 0, UpgradeType.SAFE_DOWNGRADE)
    for value, leader in (("balanced", NO_LEADER), ("proactive", 0)):
        found = Bench(strategy(value), fenced=(1, 3), last_known_elr=(1, 3), last_known_leader=1)
        assert found.apply(handle(found.state, disable).records)
        assert found.partition().leader == leader
