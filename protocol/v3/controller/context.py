"""What a controller knows: its election, its settings, and the state of the cluster as it has read and written it.

Assignments and leaders are always those of the store, since only the controller writes them. ISRs are so only if the
controller writes them too (KIP-497); where leaders do (`Settings.leaders_write_isr`), the controller reads a state
again before it decides on it (S1 A.3.1).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from protocol.config import MIN_INSYNC_REPLICAS
from protocol.ids import BrokerId, TopicPartition
from protocol.messages.v3 import LeaderAndIsrPartition, TopicConfigValue
from protocol.v3.controller import decisions
from protocol.v3.controller.decisions import Author, Brokers, Replicas
from protocol.v3.controller.procedure import BrokerCommand, Commands
from protocol.v3.store.records import Stored, Topic


@dataclass(frozen=True, slots=True)
class Settings:
    """`leaders_write_isr`: leaders write their ISRs to the store themselves (`inter.broker.protocol.isr.updates`).
    `unclean_allowed`: a replica outside the ISR may be elected. `min_isr` of topics without a value of their own.
    `attempts` of a conditional write, the pause before the second one (it doubles from then on), and the time after
    which an event whose attempts are used up is handled again. `agent_period_ms`: S1's 30 s. `moves_per_write`: how
    many reassignments of a topic one transaction completes. `rebalance_ms`: how often leaderships are moved back to the
    preferred replicas (None: never) of brokers that lack more than `imbalance_percentage` of theirs.
    """

    leaders_write_isr: bool = True
    unclean_allowed: bool = True
    min_isr: int = 1
    attempts: int = 8
    backoff_ms: int = 20
    retry_ms: int = 5_000
    agent_period_ms: int = 30_000
    moves_per_write: int = 100
    rebalance_ms: int | None = None
    imbalance_percentage: int = 0


@dataclass(slots=True)
class Move:
    """A reassignment: the replicas that the partition is to have, and `held`, the brokers that may hold it besides.
    `is_requested`: it has a request in the store; otherwise the request was withdrawn, and the partition returns to its
    assignment.
    """

    target: Replicas
    is_requested: bool = True
    has_begun: bool = False
    held: set[BrokerId] = field(default_factory=set)


@dataclass(slots=True)
class Controller:
    """The state of one term of a controller.

    `unsettled`: partitions that a broker change concerns and whose write has failed so far. `damaged`: nodes that could
    not be read, which are left alone.
    """

    author: Author
    settings: Settings
    live: dict[BrokerId, int] = field(default_factory=dict)
    leaving: set[BrokerId] = field(default_factory=set)
    topics: dict[str, Topic] = field(default_factory=dict)
    states: dict[TopicPartition, Stored] = field(default_factory=dict)
    moves: dict[TopicPartition, Move] = field(default_factory=dict)
    unsettled: set[TopicPartition] = field(default_factory=set)
    damaged: set[str] = field(default_factory=set)

    @property
    def brokers(self) -> Brokers:
        return Brokers(self.live, frozenset(self.leaving))

    def partitions(self) -> list[TopicPartition]:
        """All assigned partitions, in order."""
        return [
            TopicPartition(name, index)
            for name in sorted(self.topics)
            for index in sorted(self.topics[name].partitions)
        ]

    def assigned(self, key: TopicPartition) -> Replicas:
        """The assigned replicas; none for a partition that does not exist."""
        topic = self.topics.get(key.topic)
        return topic.partitions.get(key.partition, ()) if topic is not None else ()

    def min_isr(self, name: str) -> int:
        overrides = dict(self.topics[name].configs) if name in self.topics else {}
        return int(overrides.get(MIN_INSYNC_REPLICAS, self.settings.min_isr))

    def holders(self, key: TopicPartition) -> Replicas:
        """The brokers that hold a partition, those that a reassignment adds included."""
        move = self.moves.get(key)
        return decisions.holders(self.states.get(key), self.assigned(key), move.target if move is not None else ())

    def may_hold(self, key: TopicPartition) -> list[BrokerId]:
        """The brokers that may have a replica: the holders, and those of an earlier target of the reassignment."""
        move = self.moves.get(key)
        return sorted({*self.holders(key), *(move.held if move is not None else ())})

    def forget(self, key: TopicPartition) -> None:
        self.states.pop(key, None)
        self.moves.pop(key, None)
        self.unsettled.discard(key)

    def leader_and_isr(self, partitions: Iterable[TopicPartition], *, but: Iterable[BrokerId] = ()) -> Commands:
        """The present states of partitions for the live brokers that hold them, except those in `but` (A17, A36)."""
        parts = self._parts(partitions, sorted(set(self.live) - set(but)))
        return Commands(tuple(BrokerCommand(broker, tuple(found)) for broker, found in parts.items() if found))

    def init(self, brokers: Iterable[BrokerId]) -> Commands:
        """The first commands to brokers: all that they hold (A24). While a node is damaged, nothing may be deleted."""
        is_init, parts = not self.damaged, self._parts(self.partitions(), brokers)
        return Commands(tuple(BrokerCommand(broker, tuple(found), (), is_init) for broker, found in parts.items()))

    def _parts(
        self, partitions: Iterable[TopicPartition], brokers: Iterable[BrokerId]
    ) -> dict[BrokerId, list[LeaderAndIsrPartition]]:
        parts: dict[BrokerId, list[LeaderAndIsrPartition]] = {broker: [] for broker in brokers}
        for key in partitions:
            for broker in self.holders(key):
                if broker in parts and key in self.states:
                    parts[broker].append(self._leader_and_isr(key))
        return parts

    def _leader_and_isr(self, key: TopicPartition) -> LeaderAndIsrPartition:
        topic, stored = self.topics[key.topic], self.states[key]
        state = stored.state
        return LeaderAndIsrPartition(
            topic=key.topic,
            topic_id=topic.topic_id,
            partition_id=key.partition,
            leader=state.leader,
            leader_epoch=state.leader_epoch,
            isr=state.isr,
            version=stored.version,
            replicas=self.holders(key),
            controller_id=state.controller,
            controller_epoch=state.controller_epoch,
            configs=tuple(TopicConfigValue(name=name, value=value) for name, value in topic.configs),
            is_unclean_leader=state.is_unclean_leader,
        )
