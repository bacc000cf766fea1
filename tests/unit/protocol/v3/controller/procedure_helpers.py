"""A store's tree, model brokers that obey commands, and a controller whose procedures are carried out step by step.

Every write unit and every command is an *effect*; a `World` with a budget crashes the controller before the effect that
exceeds it. Time does not exist: pauses end at once, and `Later` adds to `World.timers`, which fire when no event waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from protocol.ids import BrokerId, TopicPartition
from protocol.messages.control import AlterPartitionRequest, BrokerState, PartitionIsrProposal
from protocol.messages.store import Check, Create, Delete, OperationResult, SetData, StoreError, WriteOperation
from protocol.messages.v3 import LeaderAndIsrPartition
from protocol.v3.controller.administration import create_topic
from protocol.v3.controller.context import Controller, Settings
from protocol.v3.controller.decisions import Author
from protocol.v3.controller.election import Elected, create_roots, elect
from protocol.v3.controller.isr_updates import alter_isr, with_isr, write_isrs
from protocol.v3.controller.procedure import (
    Alert,
    BrokerCommand,
    Commands,
    Event,
    Later,
    Pause,
    Procedure,
    Reads,
    Writes,
)
from protocol.v3.controller.term import event_of, procedures
from protocol.v3.store import paths
from protocol.v3.store.records import REMOVED, BrokerNode, LeaderAndIsr, Stored, TopicNode
from protocol.v3.store.tree import Tree, Watches

ADMIN = 1
"""The session of admins; those of brokers are above it."""
CONTROLLERS = (8, 9)
"""Brokers without replicas, which are controllers in tests."""
MAX_ROUNDS = 6
DAMAGE = b"?"


class CrashError(Exception):
    """The controller has died before its next effect."""


class DeposedError(Exception):
    """A fenced write has found another controller epoch."""


@dataclass
class ModelBroker:
    """A broker: what it holds by (topic id, partition), and the highest controller epoch it knows (A23-A25, A35)."""

    broker_id: BrokerId
    epoch: int
    controller_epoch: int = -1
    replicas: dict[tuple[str, int], LeaderAndIsrPartition] = field(default_factory=dict)
    deleted: list[tuple[str, int]] = field(default_factory=list)

    def obey(self, command: BrokerCommand, controller_epoch: int) -> None:
        if controller_epoch < self.controller_epoch:
            return
        self.controller_epoch = controller_epoch
        for part in command.leader_and_isr:
            known = self.replicas.get((part.topic_id, part.partition_id))
            if known is None or (part.leader_epoch, part.version) > (known.leader_epoch, known.version):
                self.replicas[part.topic_id, part.partition_id] = part
        if command.is_init:
            named = {(part.topic_id, part.partition_id) for part in command.leader_and_isr}
            self._delete(self.replicas.keys() - named)
        stops = {(part.topic_id, part.partition_id): part.leader_epoch for part in command.stop_replica}
        self._delete(key for key in stops if key in self.replicas and self.replicas[key].leader_epoch <= stops[key])

    def _delete(self, keys: Iterable[tuple[str, int]]) -> None:
        for key in sorted(keys):
            del self.replicas[key]
            self.deleted.append(key)


def changes(operations: tuple[WriteOperation, ...], path: str) -> bool:
    """Whether a transaction changes the node at `path`."""
    return any(operation.path == path and not isinstance(operation, Check) for operation in operations)


class World:
    """The store, the brokers, and the events that wait for the controller."""

    def __init__(self, brokers: Iterable[BrokerId] = (1, 2, 3, 4), settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.tree, self.watches = Tree(), Watches()
        self.zxid, self.sessions = 0, ADMIN
        self.brokers: dict[BrokerId, ModelBroker] = {}
        self.steps: list[Any] = []
        self.refused: list[tuple[WriteOperation, ...]] = []
        self.alerts: list[str] = []
        self.events: list[Event] = []
        self.timers: dict[Event, None] = {}
        self.fired: list[tuple[int, str]] = []
        self.session = self.term = ADMIN
        self.fence: Check | None = None
        self.controller: Controller | None = None
        self.budget: int | None = None
        self.before_write: Callable[[tuple[WriteOperation, ...]], None] = lambda operations: None
        self.admin(create_roots())
        for broker in (*brokers, *CONTROLLERS):
            self.start_broker(broker)

    # -- the store -----------------------------------------------------------------------------------------------------

    def transact(self, session: int, operations: tuple[WriteOperation, ...]) -> tuple[OperationResult, ...]:
        self.zxid += 1
        decision = self.tree.decide(self.zxid, session, operations)
        if not decision.has_failed:
            self.tree.commit(decision)
            for fired in self.watches.fire(decision.changes):
                self.fired.append((fired.session_id, fired.path))
                event = event_of(fired.path) if fired.session_id == self.term else None
                if event is not None and event not in self.events:
                    self.events.append(event)
        return decision.results

    def state(self, key: TopicPartition) -> LeaderAndIsr:
        return self.stored(key).state

    def stored(self, key: TopicPartition) -> Stored:
        node = self.tree.find(paths.leader_and_isr(key))
        assert node is not None, key
        return Stored(LeaderAndIsr.decode("", node.data), node.version)

    def topic(self, name: str) -> TopicNode:
        node = self.tree.find(paths.topic(name))
        assert node is not None, name
        return TopicNode.decode("", node.data)

    def topic_ids(self) -> dict[str, str]:
        return {name: self.topic(name).topic_id for name in self.tree.children(paths.TOPICS)}

    def leader(self, key: TopicPartition) -> BrokerId:
        return self.state(key).leader

    # -- procedures ----------------------------------------------------------------------------------------------------

    def run(self, procedure: Procedure[Any], result: Any = None) -> Any:
        """Carries a procedure out, or what is left of it after the step with this result; its steps are added to
        `steps`."""
        while True:
            try:
                step = procedure.send(result)
            except StopIteration as end:
                return end.value
            self.steps.append(step)
            result = self.carry_out(step)

    def admin(self, procedure: Procedure[Any]) -> Any:
        """Carries out a procedure of someone else than the controller."""
        session, budget, steps = self.session, self.budget, self.steps
        self.session, self.budget, self.steps = ADMIN, None, []
        try:
            return self.run(procedure)
        finally:
            self.budget, self.steps = budget, steps
            self.session = session

    def carry_out(self, step: Any) -> Any:
        match step:
            case Reads(operations):
                for operation in operations:
                    if operation.watch:
                        self._watch(operation)
                return tuple(self.tree.read(operation) for operation in operations)
            case Writes(units, is_fenced):
                results = [self._write(unit, is_fenced) for unit in units]
                self.refused += [unit for unit, found in zip(units, results, strict=True) if found[-1].error]
                return results
            case Commands(commands):
                for command in commands:
                    self._effect()
                    assert self.controller is not None
                    if command.broker in self.brokers:
                        self.brokers[command.broker].obey(command, self.controller.author.controller_epoch)
            case Later(event):
                self.timers[event] = None
            case Alert(text):
                self.alerts.append(text)
            case Pause():
                pass
        return None

    def _watch(self, operation: Any) -> None:
        if type(operation).__name__ == "GetChildren":
            self.watches.watch_children(self.session, operation.path)
        else:
            self.watches.watch_data(self.session, operation.path)

    def _write(self, unit: tuple[WriteOperation, ...], is_fenced: bool) -> tuple[OperationResult, ...]:
        self._effect()
        if self.budget is not None or self.session != ADMIN:
            self.before_write(unit)
        if not is_fenced:
            return self.transact(self.session, unit)
        assert self.fence is not None
        results = self.transact(self.session, (self.fence, *unit))
        if len(results) == 1 and results[0].error is not StoreError.NONE:
            raise DeposedError
        return results[1:]

    def _effect(self) -> None:
        if self.budget is not None:
            if self.budget == 0:
                raise CrashError
            self.budget -= 1

    # -- brokers -------------------------------------------------------------------------------------------------------

    def start_broker(self, broker: BrokerId) -> None:
        """A new incarnation, which has read its state from the store as it registers (A34): it keeps what it has."""
        self.sessions += 1
        node = BrokerNode(host="h", port=1, broker_epoch=self.sessions)
        create = Create(path=paths.broker(broker), data=node.encode(), ephemeral=True)
        assert self.transact(self.sessions, (create,))[-1].error is StoreError.NONE
        held = self.brokers[broker].replicas if broker in self.brokers else {}
        self.brokers[broker] = ModelBroker(broker, self.sessions, replicas=held)

    def stop_broker(self, broker: BrokerId) -> None:
        self.transact(ADMIN, (Delete(path=paths.broker(broker)),))

    def is_live(self, broker: BrokerId) -> bool:
        return self.tree.find(paths.broker(broker)) is not None

    # -- the controller ------------------------------------------------------------------------------------------------

    def elect(self, broker: BrokerId = CONTROLLERS[0]) -> Controller:
        """Makes a broker controller; its failover has still to be run."""
        self.watches.forget(self.term)
        self.events.clear()
        self.session = self.term = self.brokers[broker].epoch
        outcome = self.run(elect(broker, self.session))
        assert isinstance(outcome, Elected)
        self.fence = outcome.fence
        self.controller = Controller(Author(broker, outcome.epoch), self.settings)
        return self.controller

    def take_over(self, broker: BrokerId = CONTROLLERS[0]) -> Controller:
        """Makes a broker controller, and settles everything."""
        controller = self.elect(broker)
        self.events.append(Event.FAILOVER)
        self.settle()
        return controller

    def depose(self) -> None:
        """The controller's broker loses its session: `/controller` is gone, and its procedures are dropped."""
        self.transact(ADMIN, (Delete(path=paths.CONTROLLER),))
        self.watches.forget(self.term)
        self.events.clear()
        self.timers.clear()
        self.controller = None

    def handle_events(self) -> None:
        """Runs procedures until no event waits. Timers fire as long as that changes something, a few times at most."""
        for _ in range(MAX_ROUNDS):
            before = self.zxid
            while self.events:
                assert self.controller is not None
                self.run(procedures(self.controller)[self.events.pop(0)]())
            if self.zxid == before and not self.timers:
                return
            self.events, self.timers = list(self.timers), {}
        self.events.clear()

    def settle(self) -> None:
        """Handles events, and lets replicas catch up, until nothing changes."""
        self.handle_events()
        while self.catch_up():
            self.events.append(Event.WAKE_UP)
            self.handle_events()

    def catch_up(self) -> bool:
        """Leaders add to the ISR every live broker that fetches from them; whether one did."""
        changed = False
        for broker in list(self.brokers.values()):
            for part in list(broker.replicas.values()):
                changed = (part.leader == broker.broker_id and self._expand(broker, part)) or changed
        return changed

    def _expand(self, broker: ModelBroker, part: LeaderAndIsrPartition) -> bool:
        key = TopicPartition(part.topic, part.partition_id)
        node = self.tree.find(paths.leader_and_isr(key))
        if node is None or node.data == DAMAGE or not self.is_live(broker.broker_id):
            return False
        stored = self.stored(key)
        fetching = [
            other
            for other in part.replicas
            if self.is_live(other) and (part.topic_id, part.partition_id) in self.brokers[other].replicas
        ]
        isr = tuple(dict.fromkeys((*stored.state.isr, *fetching)))
        if stored.state.leader_epoch != part.leader_epoch or isr == stored.state.isr:
            return False
        if self.settings.leaders_write_isr:
            return self.write_isr(key, isr)
        assert self.controller is not None
        return not self.run(alter_isr(self.controller, self.proposal(key, isr))).partitions[0].error

    def proposal(self, key: TopicPartition, isr: tuple[BrokerId, ...], **changes: Any) -> AlterPartitionRequest:
        """What the leader of a partition proposes, with `changes` to the proposal."""
        stored = self.stored(key)
        values: dict[str, Any] = {
            "topic_id": self.topic(key.topic).topic_id,
            "partition_id": key.partition,
            "leader_epoch": stored.state.leader_epoch,
            "partition_epoch": stored.version,
            "new_isr": tuple(BrokerState(broker_id=b, broker_epoch=self.brokers[b].epoch) for b in isr),
            "leader_recovery_state": int(stored.state.is_unclean_leader),
        }
        leader = self.brokers[stored.state.leader]
        proposal = PartitionIsrProposal(**(values | changes))
        return AlterPartitionRequest(
            correlation_id=1, broker_id=leader.broker_id, broker_epoch=leader.epoch, partitions=(proposal,)
        )

    # -- judging -------------------------------------------------------------------------------------------------------

    def create_topic(self, name: str, assignment: dict[int, tuple[int, ...]], topic_id: str | None = None) -> None:
        assert not self.admin(create_topic(name, topic_id or name.upper(), assignment))

    def set_isr(self, key: TopicPartition, isr: tuple[int, ...]) -> None:
        """The leader writes an ISR."""
        assert self.write_isr(key, isr)

    def write_isr(self, key: TopicPartition, isr: tuple[int, ...]) -> bool:
        stored = self.stored(key)
        change = {key: Stored(with_isr(stored.state, isr), stored.version)}
        return key in self.admin(write_isrs(change, self.topic_ids()))

    def damage(self, path: str) -> None:
        self.transact(ADMIN, (SetData(path=path, data=DAMAGE),))

    def summary(self) -> dict[str, object]:
        """The store without what depends on how often a controller has decided: epochs, versions, authors."""
        found: dict[str, object] = {}
        for path, node in self.tree.items():
            if path.endswith(paths.LEADER_AND_ISR) and node.data != REMOVED:
                state = LeaderAndIsr.decode(path, node.data)
                found[path] = (state.leader, sorted(state.isr), state.is_unclean_leader)
            elif path.startswith(paths.TOPICS + "/") and path.count("/") == 3:
                found[path] = TopicNode.decode(path, node.data).partitions
            elif not path.startswith(("/controller", paths.BROKER_IDS)):
                found[path] = node.data
        return found

    def held(self) -> dict[BrokerId, dict[tuple[str, int], tuple[BrokerId, bool]]]:
        """What each live broker holds: the leader it knows, and the unclean flag."""
        return {
            broker.broker_id: {
                key: (part.leader, part.is_unclean_leader) for key, part in sorted(broker.replicas.items())
            }
            for broker in self.brokers.values()
            if self.is_live(broker.broker_id)
        }

    def assert_brokers_follow(self) -> None:
        """Every live broker holds exactly what the store assigns to it, under the leader epoch of the store."""
        wanted: dict[BrokerId, dict[tuple[str, int], int]] = {b: {} for b in self.brokers if self.is_live(b)}
        for name in self.tree.children(paths.TOPICS):
            topic = self.topic(name)
            for index, replicas in topic.partitions.items():
                state = self.state(TopicPartition(name, index))
                for broker in {*replicas, *state.isr} & wanted.keys():
                    wanted[broker][topic.topic_id, index] = state.leader_epoch
        found = {
            broker: {key: part.leader_epoch for key, part in self.brokers[broker].replicas.items()} for broker in wanted
        }
        assert found == wanted
