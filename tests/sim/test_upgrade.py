"""Feature levels changed under load: no acknowledged record is lost, all invariants hold, and the cluster converges."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from random import Random

import pytest

from experiments.check.engine import CheckedEngine
from experiments.engines import admin_requests
from experiments.engines.port import ClusterSpec, Loss
from experiments.engines.sim.network import NetworkModel
from experiments.scenarios.loader import scenario_from
from protocol.config import ClusterConfig
from protocol.errors import ErrorCode
from protocol.events.base import Trace
from protocol.features import LOG_GENERATIONS, Generation
from protocol.ids import FIRST_CONTROLLER, TopicPartition
from protocol.messages.admin import AdminRequest
from protocol.messages.cluster import FeatureUpdate, UpdateFeaturesRequest, UpgradeType
from protocol.messages.commands import AdminCommand, AdminOutcome, ProduceCommand
from tests.sim.chaos_helpers import BROKERS, PARTITIONS, Chaos
from tests.sim.cluster_helpers import broker_of
from tests.sim.loss_scenario_helpers import downgraded
from tests.sim.partition_helpers import image_of
from tests.sim.scenario_helpers import run_scenario, running_engine

pytestmark = pytest.mark.slow

OLD, FIRST_PHASE, RECOVERY = Generation.KIP_497, Generation.KIP_966_ELR, Generation.KIP_966
T0 = TopicPartition("t", 0)
WAYS = {
    "upgrade": (OLD, (FIRST_PHASE,)),
    "upgrade to recovery": (OLD, (RECOVERY,)),
    "recovery on": (FIRST_PHASE, (RECOVERY,)),
    "recovery off": (RECOVERY, (FIRST_PHASE,)),
    "downgrade": (FIRST_PHASE, (OLD,)),
    "downgrade from recovery": (RECOVERY, (OLD,)),
    "all the way up and down": (OLD, (FIRST_PHASE, RECOVERY, FIRST_PHASE, OLD, RECOVERY, OLD)),
}


def levels_request(engine: CheckedEngine, to: Generation) -> UpdateFeaturesRequest:
    """Moves the cluster to the levels of a generation, whatever is lost by it."""
    present = image_of(engine).feature_levels
    updates = tuple(
        FeatureUpdate(
            feature=name,
            max_version_level=level,
            upgrade_type=UpgradeType.UPGRADE if level > present[name] else UpgradeType.UNSAFE_DOWNGRADE,
        )
        for name, level in to.feature_levels.items()
    )
    return UpdateFeaturesRequest(correlation_id=0, feature_updates=updates)


@dataclass(slots=True)
class ChangingChaos(Chaos):
    """Chaos in which the feature levels go the `way` at random times."""

    way: tuple[Generation, ...] = ()
    changes: int = 0

    def _plan(self) -> list[tuple[int, str, object]]:
        random = Random(f"{self.seed}/levels")
        times = sorted(random.randrange(10_000, self.duration_ms) for _ in self.way)
        changes = [(at_ms, "change_levels", index) for index, at_ms in enumerate(times)]
        plan = Chaos._plan(self)
        return sorted([*plan, *changes], key=lambda item: (item[0], item[1], str(item[2])))

    def _change_levels(self, index: int) -> None:
        """An operator starts the controller, if it is down, and waits for the answer."""
        if not self.engine.is_running(FIRST_CONTROLLER):
            self.engine.start(FIRST_CONTROLLER)
        command = AdminCommand(command_id=10**6 + index, request=levels_request(self.engine, self.way[index]))
        self.engine.submit(command)
        assert self.engine.run_until(lambda: self.engine.outcome(command.command_id) is not None, 60_000)
        outcome = self.engine.outcome(command.command_id)
        assert isinstance(outcome, AdminOutcome)
        assert outcome.error is ErrorCode.NONE, outcome
        assert image_of(self.engine).features == self.way[index].features
        self.changes += 1

    def _lossy(self, broker: int) -> None:
        """Loses the unflushed tail, if that is within the tolerance of the levels in force."""
        if not self.engine.is_running(broker):
            return
        truth = self.engine.suite.truth
        partitions = [truth.of(partition) for partition in PARTITIONS]
        tolerable = (
            truth.features.elr
            and all(partition.reached_min_isr for partition in partitions)
            and set().union(*(partition.lossy for partition in partitions)) <= {broker}
            and self.engine.view() is not None
        )
        self.engine.crash(broker, Loss("unflushed" if tolerable else "none"))


@pytest.mark.covers("K2", "K4", "K8", "K10", "L18", "E25")
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("start", "way"), WAYS.values(), ids=WAYS)
def test_levels_change_under_load_and_faults(start: Generation, way: tuple[Generation, ...], seed: int) -> None:
    run = ChangingChaos(seed, start, way=way)
    run.run()
    assert run.complaints() == []
    assert run.changes == len(way)
    assert sum(len(run.acked[partition]) for partition in PARTITIONS) > 0
    for broker in range(BROKERS):
        assert broker_of(run.engine.cluster, broker).context.image.features == way[-1].features


# -- the race between the controller's rule and the leader's -----------------------------------------------------------


@pytest.mark.covers("M8", "E9", "K2")
@pytest.mark.parametrize("seed", range(30))
def test_a_leader_on_the_old_rule_commits_nothing_that_an_elr_member_lacks(seed: int) -> None:
    """The levels rise in the moment in which the leader asks to go on alone.

    The controller counts by the new rule as soon as it has written the levels: it takes the follower out of the ISR
    into the ELR. The leader may hear of the smaller ISR before it has read of the levels, and by the old rule would
    commit alone what consumers then see and the ELR member does not have. It must not: the answer lies ahead of what
    it has read, so it waits for the log, in which the levels stand before the ISR. The other change takes the leader's
    parked fetch, without which the log is slower than the answer.
    """
    config = ClusterConfig.of(OLD)
    engine = CheckedEngine(ClusterSpec(2, 1, config, seed), NetworkModel(1, 40))
    commands = iter(range(1, 100))
    proposed: list[int] = []
    shown: list[int] = []

    def administer(request: AdminRequest) -> None:
        engine.submit(AdminCommand(command_id=next(commands), request=request))

    def produce() -> None:
        engine.submit(
            ProduceCommand(
                command_id=next(commands), topic="t", partition=0, acks=1, record_count=1, payload=bytes([len(shown)])
            )
        )

    def observe(now_ms: int, node: int, trace: Trace) -> None:
        if trace.kind == "isr_proposed" and node == 0 and not proposed:
            proposed.append(now_ms)
            for request in (admin_requests.alter_config("t", {"flush.ms": 1_000}), levels_request(engine, FIRST_PHASE)):
                engine.cluster.call_at(now_ms, partial(administer, request))
        elif trace.kind == "high_watermark" and node == 0:
            shown.append(trace.high_watermark)

    engine.cluster.trace_observers.append(observe)
    for node in engine.spec.node_ids:
        engine.start(node)
    engine.run_for(2_000)
    administer(admin_requests.create_topic("t", ((0, 1),), {"min.insync.replicas": 2}))
    engine.run_for(2_000)
    produce()
    engine.run_for(1_000)
    assert shown[-1] == 1
    for source, target in ((0, 1), (1, 0)):
        engine.set_link(source, target, False)
    produce()
    engine.run_for(80_000)
    assert proposed
    state = engine.view().partitions[T0]  # type: ignore[union-attr]
    assert image_of(engine).features == FIRST_PHASE.features
    assert state.isr == (0,)
    if state.elr:
        assert shown[-1] == 1, "the record that only the leader has must stay unseen"
    engine.crash(0, Loss("none"))
    for source, target in ((0, 1), (1, 0)):
        engine.set_link(source, target, True)
    engine.run_for(80_000)
    assert engine.violations() == []


# -- downgrades and unregistrations; more of them: `testdata/cases/feature_levels.yaml` --------------------------------


@pytest.mark.covers("K10")
@pytest.mark.parametrize("generation", [FIRST_PHASE, RECOVERY])
@pytest.mark.parametrize("one", ["shutdown", "crash"])
def test_a_downgrade_loses_nothing_that_a_member_of_the_elr_has(generation: Generation, one: str) -> None:
    result = run_scenario(scenario_from(downgraded(one, generation.value), "inline"))
    assert (result.passed, result.losses.lost_acked) == (True, 0), (result.steps[-1], result.violations)


@pytest.mark.parametrize("broker", [0, 1])
@pytest.mark.parametrize("generation", LOG_GENERATIONS)
def test_an_unregistered_broker_that_missed_the_record_registers_again(generation: Generation, broker: int) -> None:
    """A record behind the unregistration crosses with the broker's fetch, which the controller then refuses."""
    engine = running_engine(1_000, ClusterSpec(3, 1, ClusterConfig.of(generation), seed=broker))
    changes = (
        admin_requests.create_topic("t", ((0, 1, 2),), {"min.insync.replicas": 2}),
        admin_requests.unregister_broker(broker),
        admin_requests.alter_config("t", {"flush.messages": 7}),
    )
    for command_id, request in enumerate(changes):
        engine.submit(AdminCommand(command_id=command_id, request=request))
        engine.run_for(1_000 if command_id == 0 else 0)

    def is_whole() -> bool:
        view = engine.view()
        return view is not None and all(sorted(state.isr) == [0, 1, 2] for state in view.partitions.values())

    engine.run_for(100)
    assert engine.run_until(is_whole, 60_000)
    assert not engine.violations()
