"""Several controllers under the brokers of a simulated cluster: activity, commits, failover."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from experiments.check.engine import CheckedEngine
from experiments.engines.admin_requests import add_voter, create_topic
from experiments.engines.port import ClusterSpec, Loss
from experiments.engines.sim.network import NetworkModel
from experiments.faults.kinds.administration import VoterChange
from experiments.faults.kinds.links import Cut
from experiments.faults.kinds.processes import Crash, Pause
from experiments.faults.schema import Fault
from experiments.hunt.fuzz.bias import Bias
from experiments.hunt.fuzz.plan import Plan
from experiments.hunt.fuzz.run import run_plan
from experiments.hunt.fuzz.swarm import draw
from protocol.config import (
    CONTROLLER_QUORUM_AUTO_JOIN_ENABLE,
    METADATA_RETENTION_BYTES,
    METADATA_SNAPSHOT_BYTES,
    ClusterConfig,
)
from protocol.errors import ErrorCode
from protocol.features import Generation
from protocol.ids import TopicPartition
from protocol.messages.admin import AdminRequest
from protocol.messages.commands import AdminCommand, AdminOutcome
from tests.sim.cluster_helpers import broker_of
from tests.sim.seed_helpers import some

WITHIN_MS = 30_000


class Quorum:
    """Three brokers and three controllers, up and in service."""

    def __init__(self, config: Mapping[str, object] | None = None, **options: bool) -> None:
        spec = ClusterSpec(3, 3, ClusterConfig.of(Generation.KIP_966, config), 7)
        self.engine = CheckedEngine(spec, NetworkModel(1, 2), **options)
        self.asked = 0
        for node in spec.node_ids:
            self.engine.start(node)
        self.until(lambda: self.engine.unfenced() == set(spec.broker_ids))

    def until(self, condition: object) -> None:
        assert callable(condition)
        assert self.engine.run_until(condition, WITHIN_MS)

    @property
    def active(self) -> int:
        self.until(lambda: self.engine.active_controller() is not None)
        active = self.engine.active_controller()
        assert active is not None
        return active

    def ask(self, request: AdminRequest) -> int:
        self.asked += 1
        self.engine.submit(AdminCommand(command_id=self.asked, request=request))
        return self.asked

    def outcome(self, number: int) -> AdminOutcome:
        self.until(lambda: self.engine.outcome(number) is not None)
        outcome = self.engine.outcome(number)
        assert isinstance(outcome, AdminOutcome)
        return outcome

    def knows(self, topic: str) -> bool:
        view = self.engine.view()
        return view is not None and TopicPartition(topic, 0) in view.partitions

    def isolate(self, node: int, *, but: tuple[int, ...] = (), up: bool = False) -> None:
        for other in self.engine.spec.node_ids:
            if other != node and other not in but:
                self.engine.set_link(node, other, up)
                self.engine.set_link(other, node, up)


@pytest.mark.covers("M50", "D22")
def test_records_without_a_majority_are_neither_answered_nor_kept() -> None:
    quorum = Quorum()
    first = quorum.active
    client = quorum.engine.spec.client_ids[0]
    quorum.isolate(first, but=(client,))
    number = quorum.ask(create_topic("lost", [(0, 1, 2)]))
    quorum.until(lambda: quorum.engine.active_controller() not in (None, first))
    assert not quorum.knows("lost")
    quorum.isolate(first, up=True)
    assert quorum.outcome(number).error is ErrorCode.NONE, "the client has asked the next one"
    quorum.until(lambda: quorum.engine.quorum()[first].role == "follower")
    assert quorum.knows("lost")
    assert not quorum.engine.violations()


@pytest.mark.covers("D2", "M85")
def test_brokers_find_the_next_controller_and_a_standby_changes_nothing() -> None:
    quorum = Quorum()
    first = quorum.active
    quorum.engine.crash(first, Loss("unflushed"))
    assert quorum.active != first
    quorum.until(lambda: quorum.engine.unfenced() == {0, 1, 2})
    assert quorum.outcome(quorum.ask(create_topic("t", [(0, 1, 2)]))).error is ErrorCode.NONE
    for node in quorum.engine.spec.broker_ids:
        context = broker_of(quorum.engine.cluster, node).context
        quorum.until(lambda context=context: context.controller_id == quorum.active)
    standby = next(node for node in quorum.engine.quorum() if node != quorum.active)
    view = quorum.engine.quorum()[standby]
    assert not view.is_active
    assert view.role == "follower"
    quorum.engine.start(first)
    quorum.until(lambda: quorum.engine.quorum()[first].role == "follower")
    assert not quorum.engine.violations()


@pytest.mark.covers("M84", "D7")
def test_a_node_that_was_down_loads_the_snapshot_with_its_voters() -> None:
    quorum = Quorum({METADATA_SNAPSHOT_BYTES: 300, METADATA_RETENTION_BYTES: 0})
    gone = next(node for node in quorum.engine.quorum() if node != quorum.active)
    quorum.engine.crash(gone, Loss("all"))
    quorum.engine.crash(2, Loss("all"))
    for number in range(12):
        assert quorum.outcome(quorum.ask(create_topic(f"t{number}", [(0, 1)]))).error is ErrorCode.NONE
    quorum.engine.start(gone)
    quorum.engine.start(2)

    def taken() -> set[int]:
        return {event.node for event in quorum.engine.traces() if event.trace.kind == "quorum_snapshot"}

    quorum.until(lambda: taken() >= {gone, 2})
    quorum.until(lambda: len(quorum.engine.quorum()[gone].voters) == 3)
    assert quorum.engine.quorum()[gone].role == "observer", "its disk is another one now"
    assert len(quorum.engine.metadata_log()) > 24
    assert not quorum.engine.violations()


@pytest.mark.covers("D14", "D16")
def test_a_second_disk_of_one_id_gets_no_vote() -> None:
    quorum = Quorum()
    standby = next(node for node in quorum.engine.quorum() if node != quorum.active)
    outcome = quorum.outcome(quorum.ask(add_voter(standby, "another")))
    assert outcome.error is ErrorCode.DUPLICATE_VOTER
    assert "remove it first" in outcome.message


def plan_of(*faults: Fault, joins: bool = False) -> Plan:
    base = draw(3, Generation.KIP_966, Bias(controllers=3, brokers=3, weights={"crash": 1}))
    config = {**base.config, CONTROLLER_QUORUM_AUTO_JOIN_ENABLE: joins}
    return base.model_copy(update={"faults": faults, "voters": (), "config": config})


FAULTS: dict[str, tuple[Fault, ...]] = {
    "crash": tuple(Crash(at_ms=4_000 + 900 * n, duration_ms=700, node=1000 + n % 3, loses="suffix") for n in range(6)),
    "disks": tuple(Crash(at_ms=4_000 + 2_500 * n, duration_ms=500, node=1000 + n, loses="all") for n in range(3)),
    "pause": tuple(Pause(at_ms=4_000 + 900 * n, duration_ms=3_000, node=1000 + n % 3) for n in range(4)),
    "cut": tuple(
        Cut(at_ms=4_000 + 3_000 * n, duration_ms=2_500, source=(1000 + n,), target=(0, 1, 1000 + (n + 1) % 3))
        for n in range(3)
    ),
    "voters": tuple(VoterChange(at_ms=4_000 + 1_500 * n, duration_ms=1_000, node=1000 + n % 3) for n in range(5)),
}


@pytest.mark.slow
@pytest.mark.parametrize("joins", [False, True])
@pytest.mark.parametrize("kind", FAULTS)
def test_invariants_hold_while_controllers_fail(kind: str, joins: bool) -> None:
    result = run_plan(plan_of(*FAULTS[kind], joins=joins))
    assert result.violation is None, result.violation


@pytest.mark.slow
@pytest.mark.parametrize("seed", some(range(900, 912), first=2))
def test_drawn_runs_with_several_controllers_are_clean(seed: int) -> None:
    result = run_plan(draw(seed, bias=Bias(controllers=3 if seed % 3 else 5)))
    assert result.violation is None, result.violation


def test_an_idle_quorum_costs_no_events_and_eliding_timers_changes_no_trace() -> None:
    elided, full = Quorum(), Quorum(elide_idle=False)
    for quorum in (elided, full):
        quorum.engine.run_for(60_000)
    before = elided.engine.cluster.event_count
    elided.engine.run_for(600_000)
    assert elided.engine.cluster.event_count == before
    assert full.engine.cluster.event_count > before
    active = elided.active
    for quorum in (elided, full):
        quorum.engine.crash(active, Loss("none"))
        quorum.until(lambda quorum=quorum: quorum.engine.active_controller() not in (None, active))
    assert set(elided.engine.quorum()) == set(full.engine.quorum())
