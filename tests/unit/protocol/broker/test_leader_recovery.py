"""The leader after an unclean election: data-loss hook, frozen ISR, clearing of the recovery state."""

from __future__ import annotations

from pathlib import Path
from pkgutil import resolve_name

import pytest

from actors.nodes import NodeSetup, build_node
from actors.storage import DiskStorage
from experiments.scenarios.hooks import wait_10s
from experiments.scenarios.loader import scenario_from
from experiments.support.errors import InputError
from protocol.broker.recovery import RECOVERY_PREFIX, hook_named, no_routine
from protocol.config import ClusterConfig, ConfigError, Generation
from protocol.contract import CancelTimer, Node
from protocol.errors import ErrorCode, ProtocolInvariantError
from protocol.events.registry import detail_of
from protocol.ids import TopicPartition
from protocol.messages.control import AlterPartitionRequest, AlterPartitionResponse, PartitionIsrResult
from protocol.messages.records import ConfigRecord, PartitionChangeRecord, RemoveTopicRecord
from protocol.metadata.partition import LeaderRecoveryState
from protocol.nodes.broker import BrokerNode
from tests.unit.protocol.node_helpers import CONTROLLER, BrokerBench, batch, config_of, topic_records

RECOVERED, RECOVERING = LeaderRecoveryState.RECOVERED, LeaderRecoveryState.RECOVERING
PARTITION = TopicPartition("t", 0)
TIMER = f"{RECOVERY_PREFIX}T/0"
LAG_MS = 1_000


class Hook:
    """A routine of a given duration that records its calls."""

    def __init__(self, duration_ms: int) -> None:
        self.duration_ms = duration_ms
        self.calls: list[tuple[TopicPartition, int, int]] = []

    def __call__(self, partition: TopicPartition, leader_epoch: int, log_end: int) -> int:
        self.calls.append((partition, leader_epoch, log_end))
        return self.duration_ms


def recovering(hook: Hook, **partition: object) -> BrokerBench:
    """Broker 0 has just become leader of `t-0` in an unclean election."""
    bench = BrokerBench(config=config_of(replica_lag_time_max_ms=LAG_MS), hook=hook).run()
    state: dict[str, object] = {"isr": (0,), "leader_epoch": 4, "leader_recovery_state": 1}
    return bench.publish(*topic_records(1, **state | partition))


def change(**fields: object) -> PartitionChangeRecord:
    return PartitionChangeRecord(**({"topic_id": "T", "partition_id": 0} | fields))


def proposals(bench: BrokerBench) -> list[tuple[list[int], int]]:
    """ISR and recovery state of the proposals that the last input sent."""
    return [
        ([member.broker_id for member in proposal.new_isr], proposal.leader_recovery_state)
        for _, request in bench.sends(AlterPartitionRequest)
        for proposal in request.partitions
    ]


def answer(bench: BrokerBench, request: AlterPartitionRequest, error: ErrorCode = ErrorCode.NONE) -> BrokerBench:
    """The controller accepts the proposal, or refuses it with `error`."""
    [proposal] = request.partitions
    result = PartitionIsrResult(
        topic_id="T",
        partition_id=0,
        error=error,
        leader=0,
        leader_epoch=proposal.leader_epoch,
        partition_epoch=proposal.partition_epoch + 1,
        isr=tuple(member.broker_id for member in proposal.new_isr),
        leader_recovery_state=proposal.leader_recovery_state,
    )
    return bench.receive(
        CONTROLLER, AlterPartitionResponse(correlation_id=request.correlation_id, partitions=(result,))
    )


@pytest.mark.covers("C5", "C8", "M57")
def test_the_state_is_cleared_only_after_the_hook_has_run() -> None:
    hook = Hook(10_000)
    bench = recovering(hook)
    assert hook.calls == [(PARTITION, 4, 0)]
    assert proposals(bench) == []
    timer = bench.timer(TIMER)
    assert timer is not None
    assert timer.at_ms == bench.now_ms + 10_000
    [began] = bench.traces("data_loss_routine")
    assert (began.partition, detail_of(began)) == (PARTITION, {"leader_epoch": 4, "log_end": 0, "duration_ms": 10_000})
    assert bench.traces("data_loss_handled") == []
    bench.fire(TIMER, timer.at_ms)
    assert proposals(bench) == [([0], RECOVERED)]
    assert [detail_of(trace) for trace in bench.traces("data_loss_handled")] == [{"leader_epoch": 4}]
    answer(bench, bench.sent(AlterPartitionRequest))
    assert bench.replica.leadership is not None
    assert bench.replica.leadership.recovery_state is RECOVERED
    assert len(hook.calls) == 1


@pytest.mark.covers("C5")
def test_a_hook_of_0_ms_ends_at_once() -> None:
    bench = recovering(Hook(0))
    assert proposals(bench) == [([0], RECOVERED)]
    assert bench.timer(TIMER) is None
    assert (len(bench.traces("data_loss_routine")), len(bench.traces("data_loss_handled"))) == (1, 1)


def test_the_hook_gets_the_log_end() -> None:
    hook = Hook(1)
    bench = BrokerBench(hook=hook)
    bench.storage.open_log("T/0").append(batch(3))
    bench.run(*topic_records(1, isr=(0,), leader_recovery_state=1))
    assert hook.calls == [(PARTITION, 0, 3)]


def test_a_leader_that_was_elected_cleanly_runs_no_hook() -> None:
    hook = Hook(10_000)
    bench = recovering(hook, leader_recovery_state=0)
    assert (hook.calls, bench.timer(TIMER), proposals(bench)) == ([], None, [])


def test_a_follower_runs_no_hook() -> None:
    hook = Hook(10_000)
    recovering(hook, leader=1, isr=(1,))
    assert hook.calls == []


@pytest.mark.covers("C11", "C6")
def test_no_follower_joins_the_isr_while_recovering() -> None:
    bench = recovering(Hook(500))
    bench.fetch(1, 0)
    assert proposals(bench) == []
    bench.publish(ConfigRecord(topic_id="T", name="flush.messages", value="7"))
    assert proposals(bench) == [], "a reason to look again is no reason to let anyone in"
    request = bench.fire(TIMER, 500).sent(AlterPartitionRequest)
    assert bench.fetch(2, 0).sends(AlterPartitionRequest) == []
    answer(bench, request)
    assert proposals(bench) == [([0, 1], RECOVERED)]


@pytest.mark.covers("C6", "M57")
def test_an_isr_shrink_keeps_recovering() -> None:
    """A partition may be RECOVERING with more than one ISR member because of an older record."""
    bench = recovering(Hook(60_000), isr=(0, 1))
    bench.fetch(1, 0)
    bench.fire("silent/1", LAG_MS)
    request = bench.sent(AlterPartitionRequest)
    assert proposals(bench) == [([0], RECOVERING)]
    answer(bench, request)
    assert proposals(bench) == []
    assert bench.replica.leadership is not None
    assert bench.replica.leadership.recovery_state is RECOVERING
    assert proposals(bench.fire(TIMER, 60_000)) == [([0], RECOVERED)]


def test_clearing_waits_for_a_proposal_in_flight() -> None:
    bench = recovering(Hook(2_000), isr=(0, 1))
    bench.fetch(1, 0)
    request = bench.fire("silent/1", LAG_MS).sent(AlterPartitionRequest)
    assert proposals(bench.fire(TIMER, 2_000)) == []
    answer(bench, request)
    assert proposals(bench) == [([0], RECOVERED)]


@pytest.mark.covers("C5")
def test_a_rejected_clearing_is_proposed_again() -> None:
    bench = recovering(Hook(0))
    answer(bench, bench.sent(AlterPartitionRequest), ErrorCode.INELIGIBLE_REPLICA)
    assert proposals(bench.fire("isr-retry", 1_000)) == [([0], RECOVERED)]


@pytest.mark.covers("M58", "N13")
@pytest.mark.parametrize("after_the_hook", [False, True])
def test_resigning_cancels_the_routine_and_the_next_leadership_runs_its_own(after_the_hook: bool) -> None:
    hook = Hook(10_000)
    bench = recovering(hook)
    if after_the_hook:
        bench.fire(TIMER, 10_000)
    bench.publish(change(leader=-1, isr=(), eligible_leader_replicas=(0,)))
    assert (CancelTimer(TIMER) in bench.effects) is not after_the_hook
    assert bench.replica.leadership is None
    bench.publish(change(leader=0, isr=(0,), eligible_leader_replicas=()))
    assert hook.calls == [(PARTITION, 4, 0), (PARTITION, 6, 0)]
    assert proposals(bench) == []
    timer = bench.timer(TIMER)
    assert timer is not None
    assert timer.at_ms == bench.now_ms + 10_000


def test_the_same_leader_runs_the_routine_again_in_a_new_epoch() -> None:
    hook = Hook(10_000)
    bench = recovering(hook)
    bench.now_ms = 4_000
    bench.publish(change(leader=0, replicas=(0, 1)))
    assert [epoch for _, epoch, _ in hook.calls] == [4, 5]
    timer = bench.timer(TIMER)
    assert timer is not None
    assert timer.at_ms == 14_000


def test_deleting_the_topic_cancels_the_routine() -> None:
    bench = recovering(Hook(10_000))
    bench.publish(RemoveTopicRecord(topic_id="T"))
    assert CancelTimer(TIMER) in bench.effects


@pytest.mark.parametrize("duration", [-1, 0.5, None, True])
def test_a_hook_without_a_valid_duration_breaks_an_invariant(duration: object) -> None:
    with pytest.raises(ProtocolInvariantError, match="data-loss hook"):
        recovering(Hook(duration))  # type: ignore[arg-type]


# -- the config --------------------------------------------------------------------------------------------------------


@pytest.mark.covers("C8")
def test_the_config_names_the_hook() -> None:
    assert hook_named("experiments.scenarios.hooks:wait_10s", resolve_name) is wait_10s
    assert hook_named("", resolve_name) is no_routine
    assert (wait_10s(PARTITION, 4, 7), no_routine(PARTITION, 4, 7)) == (10_000, 0)


BAD_HOOKS = {
    "no such module": "experiments.nothing:wait",
    "no such function": "experiments.scenarios.hooks:nothing",
    "no name": "not a name",
    "no function": "protocol.ids:NO_LEADER",
}


@pytest.mark.parametrize("name", BAD_HOOKS.values(), ids=BAD_HOOKS)
def test_a_config_that_names_no_function_is_a_config_error(name: str) -> None:
    with pytest.raises(ConfigError, match=r"unclean\.leader\.hook: found .*; allowed: module:function") as caught:
        hook_named(name, resolve_name)
    assert caught.value.found == name


@pytest.mark.parametrize("name", BAD_HOOKS.values(), ids=BAD_HOOKS)
def test_a_scenario_that_names_no_function_is_an_input_error(name: str) -> None:
    raw: dict[str, object] = {
        "name": "s",
        "cluster": {"brokers": 1, "config": {"unclean.leader.hook": name}},
        "steps": [{"wait": "1s"}],
    }
    with pytest.raises(InputError) as caught:
        scenario_from(raw, "file.yaml")
    assert (caught.value.source, caught.value.field) == ("file.yaml", "cluster.config.unclean.leader.hook")


def actor_of(directory: Path, hook: str) -> Node:
    """Broker 0 as an actor of the ray engine builds it."""
    config = ClusterConfig.of(Generation.KIP_966, {"unclean.leader.hook": hook})
    where = NodeSetup(0, 1, "run", directory, (0, 1, 2), (CONTROLLER,), config, 0)
    return build_node(where, DiskStorage(directory), None, now_ms=0)


def test_an_actor_runs_the_hook_that_its_config_names(tmp_path: Path) -> None:
    bench = BrokerBench()
    node = actor_of(tmp_path / "one", "experiments.scenarios.hooks:wait_10s")
    assert isinstance(node, BrokerNode)
    bench.node = node
    bench.run().publish(*topic_records(1, isr=(0,), leader_recovery_state=1))
    assert [trace.duration_ms for trace in bench.traces("data_loss_routine")] == [10_000]
    with pytest.raises(ConfigError, match=r"unclean\.leader\.hook"):
        actor_of(tmp_path / "other", "experiments.scenarios.hooks:nothing")
