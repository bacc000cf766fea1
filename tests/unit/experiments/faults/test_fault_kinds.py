"""What every kind of fault has to bring, and the kinds that have tests of their own."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from experiments.check.engine import CheckedEngine
from experiments.engines.port import ClusterSpec
from experiments.faults.controls import Controls
from experiments.faults.inject import Injector
from experiments.faults.kinds import FAULT_KINDS
from experiments.faults.kinds.links import Cut, FlappingLink
from experiments.faults.kinds.machines import FullDisk
from experiments.faults.kinds.operations import KINDS as operation_kinds
from experiments.faults.kinds.processes import Crash, Expire
from experiments.faults.schema import Fault
from experiments.faults.targets import Targets
from experiments.hunt.fuzz.swarm import draw, is_operated
from protocol.config import ClusterConfig
from protocol.events.store import StoreSessionEnded
from protocol.features import Generation
from protocol.ids import STORE
from protocol.messages.store import OpenSession
from protocol.v3.store.node import StoreNode
from protocol.v3.store.settings import StoreSettings

TARGETS = Targets(range(3), (1000, 1001, 1002), (3000,), {"t": 2}, 2)
TIMES = {"at_ms": 2_000, "duration_ms": 1_000}


def running_cluster(*faults: Fault) -> CheckedEngine:
    """Three brokers and a controller that run, and for which these faults are scheduled."""
    engine = CheckedEngine(ClusterSpec(3, 1, ClusterConfig.of(Generation.KIP_966)))
    for node in engine.spec.node_ids:
        engine.start(node)
    Injector(Controls(engine, {}, lambda: 1)).schedule(faults)
    return engine


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_every_kind_describes_itself(kind: str) -> None:
    model = FAULT_KINDS[kind]
    fault = model.model_validate(model.draw(TARGETS, Random(1)) | TIMES)
    assert fault.kind == kind
    assert fault.words()
    assert model.__doc__
    undescribed = [name for name, field in model.model_fields.items() if name != "kind" and not field.description]
    assert undescribed == []


def test_kinds_outside_the_swarm_are_in_operated_plans_only() -> None:
    left_out = {name for name, kind in FAULT_KINDS.items() if not kind.in_swarm}
    operations = {kind.model_fields["kind"].default for kind in operation_kinds}
    assert left_out == {"flapping_link", "client_crash", "clock_drift", "disk_error", "bump", *operations}
    plans = {True: set[str](), False: set[str]()}
    for seed in range(200):
        plan = draw(seed)
        if plan.store is None:
            plans[is_operated(seed)].update(fault.kind for fault in plan.faults)
    assert left_out.isdisjoint(plans[False])
    assert plans[True] == set(FAULT_KINDS) - {"expire", "bump"}


def test_kinds_that_a_cluster_cannot_have() -> None:
    """A controller loses its vote only where there are others; sessions expire and brokers change who writes their ISRs
    only where there is a store; configs change only where there is a metadata log.
    """
    alone = Targets(range(3), (1000,), (3000,), {"t": 2}, 2)
    possible = {name for name, kind in FAULT_KINDS.items() if kind.is_possible(alone)}
    assert set(FAULT_KINDS) - possible == {"expire", "bump", "voter_change"}
    of_v3 = replace(alone, controllers=(), stores=(STORE,))
    assert {name for name, kind in FAULT_KINDS.items() if kind.is_possible(of_v3)} >= {"expire", "bump"}
    assert not FAULT_KINDS["configure"].is_possible(of_v3)


@pytest.mark.covers("M39", "A52")
def test_the_sessions_of_a_live_broker_expire_unless_the_store_is_down() -> None:
    spec = ClusterSpec(2, 1, ClusterConfig.of(Generation.KIP_966), store=StoreSettings())
    engine = CheckedEngine(spec)
    for node in spec.node_ids:
        engine.start(node)
    times = ((1_000, 0), (1_400, 1))
    faults = [Expire(at_ms=at_ms, duration_ms=100, node=node) for at_ms, node in times]
    crash = Crash(at_ms=1_300, duration_ms=200, node=STORE)
    Injector(Controls(engine, {}, lambda: 1)).schedule([*faults, crash])
    for broker in spec.broker_ids:
        engine.cluster.send(broker, STORE, OpenSession(connection_id=broker, timeout_ms=60_000))
    engine.run_for(2_000)
    ended = [event.trace.owner for event in engine.traces() if isinstance(event.trace, StoreSessionEnded)]
    assert ended == [0]
    store = engine.cluster.nodes[STORE]
    assert isinstance(store, StoreNode)
    assert [session.owner for session in store.state.sessions.values()] == [1]


def test_a_flapping_link_goes_down_and_up_in_turn_until_its_end() -> None:
    engine = running_cluster(FlappingLink(**TIMES, source=(0,), target=(1, 2), down_ms=100, up_ms=300))
    up = []
    for at_ms in (1_950, 2_050, 2_150, 2_350, 2_450, 2_550, 2_850, 2_950, 3_050, 3_500):
        engine.run_for(at_ms - engine.now_ms())
        links = {not engine.cluster.network.is_cut(a, b) for a, b in ((0, 1), (1, 0), (0, 2), (2, 0))}
        assert len(links) == 1
        up.append(links.pop())
    assert up == [True, False, True, True, False, True, False, True, True, True]
    assert not engine.cluster.network.is_cut(1, 2)


def test_a_flapping_link_stays_down_while_a_cut_holds_it() -> None:
    flaps = FlappingLink(**TIMES, source=(0,), target=(1,), down_ms=100, up_ms=300)
    engine = running_cluster(flaps, Cut(at_ms=2_050, duration_ms=200, source=(0,), target=(1,), one_way=True))
    engine.run_for(2_150)
    assert engine.cluster.network.is_cut(0, 1)
    assert not engine.cluster.network.is_cut(1, 0)
    engine.run_for(150)
    assert not engine.cluster.network.is_cut(0, 1)


def test_a_disk_that_two_faults_fill_has_room_when_both_are_over() -> None:
    both = [FullDisk(at_ms=2_000, duration_ms=duration_ms, node=1) for duration_ms in (500, 1_500)]
    engine = running_cluster(*both)
    room = []
    for at_ms in (1_900, 2_100, 2_600, 3_600):
        engine.run_for(at_ms - engine.now_ms())
        room.append(not engine.cluster.disks[1].open_log("probe").full)
    assert room == [True, False, False, True]
