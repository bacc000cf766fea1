"""Compares the expectations of a scenario with the state of an engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from experiments.check.final_logs import LEADING_WITHIN_MS, has_its_leader
from experiments.check.losses import Losses
from experiments.engines.port import Engine, TraceEvent
from experiments.scenarios.clients import ScenarioClients
from experiments.scenarios.expectation_model import Expectation
from protocol.controller.metrics import partition_metrics
from protocol.events.controller import PartitionChanged
from protocol.events.quorum import QuorumRoleChanged
from protocol.ids import NO_LEADER, TopicPartition
from protocol.metadata.partition import LeaderRecoveryState, PartitionState
from protocol.quorum.election import Role

_PASSING_ROLES = (Role.UNATTACHED, Role.PROSPECTIVE, Role.CANDIDATE, Role.RESIGNED)
LOSS_FIELDS = frozenset({"lost_acked", "lost_by_acks", "undecided", "deleted_by_retention"})
"""Expectations about what has become of acknowledged records."""


def fields_of(state: PartitionState | PartitionChanged) -> dict[str, object]:
    """The controller's state of a partition, by the names of expectations and in the order of the JSON result."""
    if isinstance(state, PartitionChanged):
        is_recovering = state.recovering
    else:
        is_recovering = state.leader_recovery_state is LeaderRecoveryState.RECOVERING
    return {
        "leader": state.leader,
        "isr": sorted(state.isr),
        "elr": sorted(state.elr),
        "last_known_elr": sorted(state.last_known_elr),
        "last_known_leader": state.last_known_leader,
        "replicas": list(state.replicas),
        "leader_recovery_state": "recovering" if is_recovering else "recovered",
        "leader_epoch": state.leader_epoch,
        "partition_epoch": state.partition_epoch,
    }


def mismatch(expected: Expectation, engine: Engine, clients: ScenarioClients) -> str:
    """The expectations that do not hold, in words; empty if all hold."""
    wrong = ""
    if expected.broker is not None:
        wrong = _broker_mismatch(expected, engine, expected.broker)
    elif isinstance(expected.controller, int) and expected.role is not None:
        quorum = engine.quorum().get(expected.controller) if engine.is_running(expected.controller) else None
        wrong = _compare("role", None if quorum is None else quorum.role, expected.role)
    elif expected.topic is not None:
        wrong = _partition_mismatch(expected, engine, clients)
    return "; ".join(filter(None, (wrong, *_cluster_mismatches(expected, engine))))


def _cluster_mismatches(expected: Expectation, engine: Engine) -> Iterator[str]:
    """The comparisons that go with any subject; empty texts where they hold."""
    if expected.voters is not None:
        present = engine.view()
        yield _compare("voters", None if present is None else sorted(present.voters), sorted(expected.voters))
    if expected.registered_controllers is not None:
        present = engine.view()
        found = None if present is None else sorted(present.controllers)
        yield _compare("registered_controllers", found, sorted(expected.registered_controllers))
    view = engine.published()
    if expected.controller_broker is not None:
        yield _compare("controller_broker", engine.active_controller(), expected.controller_broker)
    if expected.controller_epoch is not None:
        yield _compare("controller_epoch", view and view.controller_epoch, expected.controller_epoch)
    if expected.metrics:
        metrics = dict(engine.metrics())
        if expected.topic is not None and view is not None:
            state = view.partitions.get(TopicPartition(expected.topic, expected.partition))
            metrics |= {} if state is None else partition_metrics(state)
        for name, wanted in expected.metrics.items():
            yield _compare(name, metrics.get(name), wanted)


def _partition_mismatch(expected: Expectation, engine: Engine, clients: ScenarioClients) -> str:
    assert expected.topic is not None
    partition = TopicPartition(expected.topic, expected.partition)
    view = engine.published()
    if view is None:
        return "no controller is active"
    state = view.partitions.get(partition)
    if state is None:
        return f"the controller knows no partition {partition}"
    wrong = _state_mismatches(expected, fields_of(state))
    if expected.racks is not None:
        racks = sorted(rack for broker in state.replicas if (rack := engine.spec.rack_of(broker)) is not None)
        wrong.append(_compare("racks", racks, sorted(expected.racks)))
    if not any(wrong):
        wrong += _data_mismatches(expected, partition, state, engine, clients)
    return "; ".join(filter(None, wrong))


def was_published(expected: Expectation, events: Iterable[TraceEvent]) -> bool:
    """Whether one of these events shows a state that meets the expectation, which names nothing but such a state: one
    of the partition that the controller has published, or a role that a controller does not keep.
    """
    wanted = expected.model_fields_set - {"topic", "partition", "within"}
    if wanted == {"controller", "role"} and expected.role in _PASSING_ROLES:
        changes = ((event.node, event.trace) for event in events if isinstance(event.trace, QuorumRoleChanged))
        return any(node == expected.controller and change.role == expected.role for node, change in changes)
    partition = expected.topic and TopicPartition(expected.topic, expected.partition)
    for event in events:
        if wanted and isinstance(event.trace, PartitionChanged) and event.trace.partition == partition:
            fields = fields_of(event.trace)
            if wanted <= fields.keys() and not any(_state_mismatches(expected, fields)):
                return True
    return False


def _state_mismatches(expected: Expectation, fields: dict[str, object]) -> list[str]:
    """The comparisons with the controller's state of the partition; empty texts where they hold."""
    return [
        _compare(name, found, sorted(wanted) if name in ("isr", "elr", "last_known_elr") else wanted)
        for name, found in fields.items()
        if (wanted := getattr(expected, name)) is not None
    ]


def await_leadership(expected: Expectation, engine: Engine) -> None:
    """Waits until the leader that the controller has elected has become leader, if it is running: expectations about
    data are about that leader, which has to replay the metadata first.
    """
    if expected.topic is None:
        return
    partition = TopicPartition(expected.topic, expected.partition)

    def has_become_leader() -> bool:
        view = engine.published()
        state = None if view is None else view.partitions.get(partition)
        return state is None or has_its_leader(engine, partition, state)

    engine.run_until(has_become_leader, LEADING_WITHIN_MS)


def _data_mismatches(
    expected: Expectation, partition: TopicPartition, state: PartitionState, engine: Engine, clients: ScenarioClients
) -> list[str]:
    wrong = []
    if expected.high_watermark is not None:
        replica = engine.replica(state.leader, partition) if state.leader != NO_LEADER else None
        found = replica.high_watermark if replica is not None and replica.leads else None
        wrong.append(_compare("high_watermark", found, expected.high_watermark))
    for broker, offset in (expected.log_end_offset or {}).items():
        replica = engine.replica(broker, partition)
        end = None if replica is None else replica.log_end_offset
        wrong.append(_compare(f"log_end_offset of {broker}", end, offset))
    if LOSS_FIELDS & expected.model_fields_set:
        wrong += _loss_mismatches(expected, clients.losses(partition))
    if expected.high_watermark_regressions is not None:
        found = clients.high_watermark_regressions(partition)
        wrong.append(_compare("high_watermark_regressions", found, expected.high_watermark_regressions))
    if expected.visible is not None and not any(wrong):
        wrong.append(_compare("visible", clients.visible(partition), expected.visible))
    return wrong


def _loss_mismatches(expected: Expectation, losses: Losses) -> list[str]:
    """The comparisons of the figures of losses. While it is undecided what is lost, no number holds."""
    found, unknown = losses.document(), f"unknown ({'; '.join(losses.reasons)})"
    by_acks = found.pop("lost_by_acks")
    assert isinstance(by_acks, dict)
    wanted: dict[str, object] = {name: getattr(expected, name) for name in found}
    for acks, number in (expected.lost_by_acks or {}).items():
        name = f"lost_by_acks of {acks}"
        found[name], wanted[name] = by_acks[acks], number
    return [
        _compare(name, unknown if found[name] is None else found[name], number)
        for name, number in wanted.items()
        if number is not None
    ]


def _compare(name: str, found: object, wanted: object) -> str:
    return "" if found == wanted else f"{name}: found {'none' if found is None else found}; expected {wanted}"


def _broker_mismatch(expected: Expectation, engine: Engine, broker: int) -> str:
    """Compares the broker's process, and its registration."""
    view = engine.published()
    registered = None if view is None else view.brokers.get(broker)
    state = "fenced" if registered is None or registered.fenced else "unfenced"
    registration = "none" if registered is None else state
    if registered is not None and not registered.fenced and registered.in_controlled_shutdown:
        registration = "controlled_shutdown"
    wrong = []
    if expected.state is not None:
        wrong.append(_compare("state", state if engine.is_running(broker) else "shutdown", expected.state))
    if expected.registration is not None:
        found = "unknown, since no controller is active" if view is None else registration
        wrong.append(_compare("registration", found, expected.registration))
    return "; ".join(filter(None, wrong))


def describe_partitions(engine: Engine, clients: ScenarioClients) -> list[dict[str, object]]:
    """The partitions as the JSON result has them; log end offsets of running brokers only."""
    view = engine.published()
    if view is None:
        return []
    return [
        describe_partition(engine, partition, state) | clients.losses(partition).document()
        for partition, state in sorted(view.partitions.items())
    ]


def describe_partition(engine: Engine, partition: TopicPartition, state: PartitionState) -> dict[str, object]:
    """A partition in this state with its high watermark, and the log end offsets of running brokers."""
    replicas = {broker: engine.replica(broker, partition) for broker in state.replicas}
    leader = replicas.get(state.leader)
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        **fields_of(state),
        "high_watermark": None if leader is None else leader.high_watermark,
        "log_end_offsets": {
            str(broker): replica.log_end_offset
            for broker, replica in replicas.items()
            if replica is not None and engine.is_running(broker)
        },
    }
