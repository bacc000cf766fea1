"""What a page shows of the nodes and partitions of a cluster, on any engine, as JSON has it; and why the state of a
cluster does not allow a step, where the step itself would fail only after some time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from experiments.engines.port import ClusterView, Engine
from experiments.play.lessons.model import Situation
from experiments.play.world import RawStep
from experiments.scenarios.clients import ScenarioClients
from experiments.scenarios.expectations import describe_partitions
from experiments.scenarios.model import Step
from protocol.config import MIN_INSYNC_REPLICAS
from protocol.ids import (
    NO_LEADER,
    RECOVERY_MANAGER,
    STORE,
    NodeId,
    TopicPartition,
    is_broker,
    is_client,
    is_controller,
    node_name,
)


def node_views(engine: Engine, paused: Collection[NodeId], view: ClusterView | None) -> list[dict[str, object]]:
    """The nodes: `state` in a word, and in which role each is. `view` is that of the active controller."""
    quorum = engine.quorum()
    roles = {
        node: f"{'active' if quorum[node].is_active else quorum[node].role}, epoch {quorum[node].epoch}"
        for node in quorum
    }
    for broker, found in () if view is None else view.brokers.items():
        is_of_process = engine.broker_epoch(broker) == found.broker_epoch
        roles[broker] = "not registered" if not is_of_process else "fenced" if found.fenced else "unfenced"
    return [_node(node, engine.is_running(node), node in paused, roles, view) for node in engine.spec.node_ids]


def _node(
    node: NodeId, runs: bool, is_paused: bool, roles: Mapping[NodeId, str], view: ClusterView | None
) -> dict[str, object]:
    kinds = {"broker": is_broker, "controller": is_controller, "client": is_client}
    kind = next((name for name, is_kind in kinds.items() if is_kind(node)), "manager")
    role = ""
    if runs and is_broker(node) and view is not None:
        role = roles.get(node, "not registered")
    elif runs and is_controller(node):
        role = roles.get(node, "")
    fields: dict[int, dict[str, object]] = {RECOVERY_MANAGER: {"urm": True}, STORE: {"store": True}}
    return {
        "id": node,
        "name": node_name(node),
        "kind": kind,
        "state": "down" if not runs else "paused" if is_paused else "up",
        "role": role,
        "step": None if kind == "client" else fields.get(node, {kind: node}),
    }


def partition_views(
    engine: Engine, clients: ScenarioClients, min_isr: Mapping[TopicPartition, int | None]
) -> list[dict[str, object]]:
    """The partitions as the result of a scenario has them, with their min ISR (None: not known) and the number of
    acknowledged records.
    """
    found = []
    for it in describe_partitions(engine, clients):
        key = TopicPartition(str(it["topic"]), int(str(it["partition"])))
        known = {"acknowledged": len(clients.acknowledged.get(key, ()))}
        found.append({**it, "name": str(key), "min_isr": min_isr.get(key), **known})
    return found


def stored_min_isr(engine: Engine) -> dict[TopicPartition, int | None]:
    """The min ISR of the partitions of generation `v3`: the override of the topic, else the cluster's config."""
    published, default = engine.store_view(), engine.spec.config.int_value(MIN_INSYNC_REPLICAS)
    return {
        key: int(published.topic_configs.get(key.topic, {}).get(MIN_INSYNC_REPLICAS, default))
        for key in published.partitions
    }


def situation_of(state: Mapping[str, object], step: RawStep | None) -> Situation:
    """What the goals of a lesson are about, of a page's state."""
    nodes, partitions = state["nodes"], state["partitions"]
    assert isinstance(nodes, list)
    assert isinstance(partitions, list)
    voters = state["voters"]
    assert isinstance(voters, list)
    words = {it["name"]: frozenset({it["state"], it["role"].partition(",")[0]}) for it in nodes}
    return Situation({it["name"]: it for it in partitions}, words, voters, step)


def obstacle(raw: RawStep, step: Step, engine: Engine, paused: Collection[NodeId]) -> str:
    """Why the state does not allow a step, empty if it does; of what would fail only after some time, or break."""
    [(kind, fields)] = raw.items()
    if kind == "produce" and isinstance(fields, dict):
        view, name = engine.published(), f"{fields['topic']}-{fields.get('partition', 0)}"
        states = {} if view is None else {str(key): state for key, state in view.partitions.items()}
        if name not in states or states[name].leader == NO_LEADER:
            why = "no controller is active" if view is None else f"{name} has no leader, to which a producer could send"
            return f"nothing can be produced: {why}"
    node = getattr(step.fields, "node", None) if kind in ("crash", "shutdown", "start", "pause", "resume") else None
    if isinstance(node, int):
        return _obstacle_of_node(kind, node, engine.is_running(node), node in paused)
    if kind == "flush" and isinstance(broker := getattr(step.fields, "broker", None), int):
        return "" if engine.is_running(broker) else f"{node_name(broker)} does not run"
    administers = ("elect", "reassign", "configure", "unregister", "add_voter", "remove_voter")
    if kind in administers and engine.active_controller() is None:
        return f"{kind}: no controller is active that could do it"
    if kind == "add_voter" and isinstance(node := getattr(step.fields, "controller", None), int):
        return "" if engine.is_running(node) else f"{node_name(node)} does not run, so that its disk is not known"
    return ""


def _obstacle_of_node(kind: str, node: NodeId, runs: bool, is_paused: bool) -> str:
    name = node_name(node)
    if runs == (kind == "start"):
        return f"{name} {'runs already' if runs else 'does not run'}"
    if kind == "resume" and not is_paused:
        return f"{name} is not paused"
    if kind in ("pause", "shutdown") and is_paused:
        return f"{name} is paused: resume it first"
    return ""
