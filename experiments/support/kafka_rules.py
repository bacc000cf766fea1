"""Rules of Kafka's code that isray departs from on purpose, each as a replacement of a function of the protocol.

While `kafka_rules` lasts, the protocol decides as Kafka's code does. Two things need that. `isray conformance` explains
a recorded answer by a rule if the protocol under that rule gives exactly this answer (`experiments/conformance`). A
scenario with `kafka_rules` shows what the rule leads to (`experiments/scenarios`).

All of them are about replicas that are not known to be complete, in generation `kip-966-elr`, which is Kafka's first
phase of KIP-966: `last_known_elr` holds the last known leader there. The names of classes and methods are those of
package `org.apache.kafka.controller`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from experiments.support.patches import Patch, around, constant, replaced
from protocol.controller import brokers, partition_change, reassignments
from protocol.controller.heartbeats import BrokerControlState
from protocol.controller.partition_change import Brokers, ChangeRequest, _Assignment
from protocol.controller.partition_election import Elected
from protocol.ids import NO_LEADER, BrokerId, Epoch
from protocol.metadata.partition import PartitionState
from protocol.nodes.broker_control import BrokerControl


@dataclass(frozen=True, slots=True)
class KafkaRule:
    """One rule. `kafka` says what Kafka's code does, `source` where and in which releases; `patches` make the protocol
    do the same.
    """

    name: str
    kafka: str
    source: str
    patches: tuple[Patch, ...]


def assigned_or_not(
    original: Callable[..., BrokerId], state: PartitionState, request: ChangeRequest, replicas: Brokers
) -> BrokerId:
    """The last known leader as if it were assigned; replaces `partition_change._last_known_leader`."""
    return original(state, request, (*replicas, state.last_known_leader, *state.last_known_elr))


def _any_member_of_the_elr(original: Callable[..., bool], target: _Assignment, elr: Brokers) -> bool:
    return bool(target.isr or elr)


def _dead_or_alive(
    original: Callable[..., Elected], state: PartitionState, request: ChangeRequest, target: _Assignment, elr: Brokers
) -> Elected:
    """Elects the last known leader without asking whether it may lead; "none" (-1) is elected like any other."""
    if request.use_last_known_leader and request.designated_leader == NO_LEADER:
        known = partition_change._last_known_leader(state, request, target.replicas)
        recorded = known != NO_LEADER or state.last_known_elr == (NO_LEADER,)
        if recorded and not partition_change._has_complete_replica(target, elr):
            return Elected(known, unclean=True)
    return original(state, request, target, elr)


def _leave_though_fenced(
    original: Callable[..., None], self: BrokerControl, broker: BrokerId, epoch: Epoch, target: BrokerControlState
) -> None:
    """A fenced broker that may shut down leaves every ISR; a dead leader is in one."""
    state = self._log.state
    if target is BrokerControlState.SHUTDOWN_NOW and state.image.brokers[broker].fenced:
        self._log.write(brokers.leave_in_sync_replicas(state, broker))
    original(self, broker, epoch, target)


KAFKA_RULES: dict[str, KafkaRule] = {
    rule.name: rule
    for rule in (
        KafkaRule(
            name="returning-replica-eligible",
            kafka="A replica that a reassignment removed stays in the ELR, also when a later one brings it back.",
            source="PartitionChangeBuilder.maybePopulateTargetElr; 4.0.0, 4.1.0",
            patches=(constant(reassignments, "_returning_members", ()),),
        ),
        KafkaRule(
            name="removed-replica-blocks-last-known-leader",
            kafka="The last known leader is not elected while the ELR has any member, in the assignment or not.",
            source="PartitionChangeBuilder.canElectLastKnownLeader; 4.0.0, 4.1.0",
            patches=(around(partition_change, "_has_complete_replica", _any_member_of_the_elr),),
        ),
        KafkaRule(
            name="dead-last-known-leader-elected",
            kafka="The last known leader is elected whether it is alive or not (KAFKA-19522).",
            source="PartitionChangeBuilder.canElectLastKnownLeader; 4.0.0, mended in 4.1.0",
            patches=(
                around(partition_change, "_elect", _dead_or_alive),
                around(BrokerControl, "_change_control_state", _leave_though_fenced),
            ),
        ),
        KafkaRule(
            name="unassigned-last-known-leader-elected",
            kafka="The last known leader is elected whether it is a replica of the assignment or not.",
            source="PartitionChangeBuilder.canElectLastKnownLeader; 4.0.0, 4.1.0",
            patches=(around(partition_change, "_last_known_leader", assigned_or_not),),
        ),
    )
}


@contextmanager
def kafka_rules(names: Sequence[str]) -> Iterator[None]:
    """The protocol with these of Kafka's rules (keys of `KAFKA_RULES`) until the end of the block; with its own for
    none. InputError in a compiled build, unless there are none.
    """
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(replaced(name, KAFKA_RULES[name].patches))
        yield
