"""The data-loss hook of a leader after an unclean election, and its config. Examples: `testdata/recovery.txt`."""

from __future__ import annotations

from pathlib import Path
from pkgutil import resolve_name

import pytest

from actors.nodes import NodeSetup, build_node
from actors.storage import DiskStorage
from experiments.scenarios.hooks import wait_10s
from experiments.scenarios.loader import scenario_from
from experiments.support.errors import InputError
from protocol.broker.recovery import hook_named, no_routine
from protocol.config import ClusterConfig, ConfigError
from protocol.contract import Node
from protocol.errors import ProtocolInvariantError
from protocol.features import Generation
from protocol.ids import TopicPartition
from protocol.nodes.broker import BrokerNode
from tests.unit.protocol.node_helpers import CONTROLLER, BrokerBench, config_of, topic_records

PARTITION = TopicPartition("t", 0)
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
