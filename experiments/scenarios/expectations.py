"""Compares the expectations of a scenario with the state of an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from experiments.check.losses import Losses
from experiments.engines.port import Engine, TraceEvent
from experiments.scenarios.clients import ScenarioClients
from experiments.scenarios.expectation_model import Expectation
from protocol.controller.metrics import partition_metrics
from protocol.events.controller import PartitionChanged
from protocol.ids import NO_LEADER, TopicPartition
from protocol.metadata.partition import LeaderRecoveryState, PartitionState

LEADING_WITHIN_MS = 5_000
LOSS_FIELDS = frozenset({"lost_acked", "lost_by_acks", "undecided", "deleted_by_retention"})
"""Expectations about what has become of acknowledged records."""
_SETS = {"isr", "elr", "last_known_elr"}
_CONTROLLER_FIELDS: dict[str, Callable[[PartitionState], object]] = {
    "leader": lambda state: state.leader,
    "isr": lambda state: sorted(state.isr),
    "elr": lambda state: sorted(state.elr),
    "last_known_elr": lambda state: sorted(state.last_known_elr),
    "last_known_leader": lambda state: state.last_known_leader,
    "replicas": lambda state: list(state.replicas),
    "leader_recovery_state": lambda state: state.leader_recovery_state.name.lower(),
    "leader_epoch": lambda state: state.leader_epoch,
    "partition_epoch": lambda state: state.partition_epoch,
}


def mismatch(expected: Expectation, engine: Engine, clients: ScenarioClients) -> str:
    """The expectations that do not hold, in words; empty if all hold."""
    if expected.broker is not None and expected.state is not None:
        wrong = _compare("state", _broker_state(engine, expected.broker), expected.state)
    elif expected.controller is not None and expected.role is not None:
        quorum = engine.quorum().get(expected.controller) if engine.is_running(expected.controller) else None
        wrong = _compare("role", None if quorum is None else quorum.role, expected.role)
    elif expected.topic is not None:
        wrong = _partition_mismatch(expected, engine, clients)
    else:
        wrong = ""
    cluster_wide = (
        _voter_mismatch(expected, engine),
        *_controller_mismatches(expected, engine),
        *_metric_mismatches(expected, engine),
    )
    return "; ".join(text for text in (wrong, *cluster_wide) if text)


def _voter_mismatch(expected: Expectation, engine: Engine) -> str:
    if expected.voters is None:
        return ""
    view = engine.view()
    return _compare("voters", None if view is None else sorted(view.voters), sorted(expected.voters))


def _controller_mismatches(expected: Expectation, engine: Engine) -> list[str]:
    view = engine.published()
    found = {"controller_broker": engine.active_controller(), "controller_epoch": view and view.controller_epoch}
    wanted = {name: getattr(expected, name) for name in found}
    return [_compare(name, found[name], value) for name, value in wanted.items() if value is not None]


def _metric_mismatches(expected: Expectation, engine: Engine) -> list[str]:
    if not expected.metrics:
        return []
    found = dict(engine.metrics())
    view = engine.published()
    if expected.topic is not None and view is not None:
        state = view.partitions.get(TopicPartition(expected.topic, expected.partition))
        found |= {} if state is None else partition_metrics(state)
    return [_compare(name, found.get(name), wanted) for name, wanted in expected.metrics.items()]


def _partition_mismatch(expected: Expectation, engine: Engine, clients: ScenarioClients) -> str:
    assert expected.topic is not None
    partition = TopicPartition(expected.topic, expected.partition)
    view = engine.published()
    if view is None:
        return "no controller is active"
    state = view.partitions.get(partition)
    if state is None:
        return f"the controller knows no partition {partition}"
    wrong = _state_mismatches(expected, state)
    if not any(wrong):
        wrong += _data_mismatches(expected, partition, state, engine, clients)
    return "; ".join(text for text in wrong if text)


def was_published(expected: Expectation, events: Iterable[TraceEvent]) -> bool:
    """Whether the controller has published a state of the partition that meets the expectation, among these events;
    false for an expectation of anything but such a state.
    """
    wanted = expected.model_fields_set - {"topic", "partition", "within"}
    if expected.topic is None or not wanted or not wanted <= _CONTROLLER_FIELDS.keys():
        return False
    partition = TopicPartition(expected.topic, expected.partition)
    states = (
        _published_state(event.trace)
        for event in events
        if isinstance(event.trace, PartitionChanged) and event.trace.partition == partition
    )
    return any(not any(_state_mismatches(expected, state)) for state in states)


def _published_state(trace: PartitionChanged) -> PartitionState:
    recovering = LeaderRecoveryState.RECOVERING if trace.recovering else LeaderRecoveryState.RECOVERED
    return PartitionState(
        replicas=trace.replicas,
        isr=trace.isr,
        leader=trace.leader,
        leader_epoch=trace.leader_epoch,
        partition_epoch=trace.partition_epoch,
        elr=trace.elr,
        last_known_elr=trace.last_known_elr,
        last_known_leader=trace.last_known_leader,
        leader_recovery_state=recovering,
    )


def _state_mismatches(expected: Expectation, state: PartitionState) -> list[str]:
    """The comparisons of the named fields with the controller's state of the partition; empty texts where they hold."""
    found = []
    for name, read in _CONTROLLER_FIELDS.items():
        wanted = getattr(expected, name)
        if wanted is not None:
            found.append(_compare(name, read(state), sorted(wanted) if name in _SETS else wanted))
    return found


def await_leadership(expected: Expectation, engine: Engine) -> None:
    """Waits until the leader that the controller has elected has become leader, if it is running: it has to replay the
    metadata first, and expectations about data are about that leader.
    """
    if expected.topic is None:
        return
    partition = TopicPartition(expected.topic, expected.partition)

    def has_become_leader() -> bool:
        view = engine.published()
        state = None if view is None else view.partitions.get(partition)
        if state is None or state.leader == NO_LEADER or not engine.is_running(state.leader):
            return True
        replica = engine.replica(state.leader, partition)
        return replica is not None and replica.leads and replica.leader_epoch == state.leader_epoch

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


def _broker_state(engine: Engine, broker: int) -> str:
    if not engine.is_running(broker):
        return "shutdown"
    view = engine.published()
    registration = None if view is None else view.brokers.get(broker)
    return "fenced" if registration is None or registration.fenced else "unfenced"


def describe_partitions(engine: Engine, clients: ScenarioClients) -> list[dict[str, object]]:
    """The partitions as the JSON result has them; log end offsets of running brokers only."""
    view = engine.published()
    if view is None:
        return []
    result = []
    for partition, state in sorted(view.partitions.items()):
        replicas = {broker: engine.replica(broker, partition) for broker in state.replicas}
        leader = replicas.get(state.leader)
        result.append(
            {
                "topic": partition.topic,
                "partition": partition.partition,
                **{name: read(state) for name, read in _CONTROLLER_FIELDS.items()},
                "high_watermark": None if leader is None else leader.high_watermark,
                "log_end_offsets": {
                    str(broker): replica.log_end_offset for broker, replica in replicas.items() if replica is not None
                },
                **clients.losses(partition).document(),
            }
        )
    return result
