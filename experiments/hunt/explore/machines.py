"""Nodes as state machines: their states have numbers, and each step is computed once by the node code and cached.

A node is deterministic, so the step of a node in state 17 on message 5 is computed once, however many states of the
cluster contain it. A state of the cluster is then a few numbers, and a step of it a few lookups. The node code runs,
unchanged, on a copy of the node. A broker of `v3` in the middle of a procedure, which is a generator, cannot be copied
(`copies.py`): its copy is made from that of its last state without one, by the inputs since.

Time. The time passed to nodes is 0 with every message and `replica.lag.time.max.ms` with every timer: a follower may
lag at any moment, and no time gets into the state. `model.py` decides which timers fire, and when.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random

from experiments.engines.port import ClusterSpec, Loss
from experiments.engines.sim.disk import SimStorage, formatted_disk
from experiments.hunt.explore.copies import copy_of
from experiments.hunt.explore.values import VALUES, Keys
from protocol.config import REPLICA_LAG_TIME_MAX_MS
from protocol.contract import Effect, Exit, Send
from protocol.errors import ErrorCode, ProtocolInvariantError
from protocol.events.base import Trace
from protocol.events.controller import RecoveryDecided
from protocol.ids import FIRST_CONTROLLER, METADATA_LOG, NO_EPOCH, NO_OFFSET, Epoch, NodeId, Offset, TimeMs, is_client
from protocol.messages.base import Message
from protocol.messages.data import ProduceResponse
from protocol.messages.quorum import QuorumFetchResponse
from protocol.nodes.base_broker import BaseBroker
from protocol.nodes.broker import BrokerNode
from protocol.nodes.controller import ControllerNode
from protocol.nodes.recovery_manager import WAKE_TIMER, RecoveryManagerNode
from protocol.quorum import state_file
from protocol.v3.broker.node import V3BrokerNode
from protocol.v3.store.node import StoreNode

Local = int
"""The number of a node's state."""
_MAX_BYTES = 2**62


class ConstantRandom(Random):
    """A random source that always returns the same value, so that a broker's incarnation id follows from its epoch."""

    def __init__(self, value: int) -> None:
        super().__init__(0)
        self.value = value

    def getrandbits(self, bits: int) -> int:
        return self.value % (1 << bits)

    def random(self) -> float:
        return 0.0

    def getstate(self) -> tuple[int, ...]:
        return (self.value,)

    def __reduce__(self) -> tuple[type[ConstantRandom], tuple[int]]:
        return ConstantRandom, (self.value,)


@dataclass(frozen=True, slots=True)
class DeadBroker:
    """A broker that is not running: its disk."""

    broker: NodeId
    disk: SimStorage


AnyNode = BaseBroker | DeadBroker | ControllerNode | StoreNode | RecoveryManagerNode
_Key = tuple[Local, *tuple[object, ...]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a step: the node's next state, the messages sent (receiver, number of the message), the trace
    events with their number in `events_number`, 0 for none, the last offset acknowledged to a client, -1 for none, and
    whether a recovery is decided.
    """

    events_number: int
    local: Local
    sends: tuple[tuple[NodeId, int], ...]
    traces: tuple[Trace, ...]
    acknowledged: Offset = NO_OFFSET
    decides: bool = False


class Machines:
    """All states of nodes that were reached. `nodes[local]` is a node in that state, which must not be changed."""

    def __init__(self, spec: ClusterSpec) -> None:
        self.nodes: list[AnyNode] = []
        self._spec = spec
        self._late_ms = spec.config.int_value(REPLICA_LAG_TIME_MAX_MS)
        self._locals: dict[object, Local] = {}
        self._outcomes: dict[_Key, Outcome] = {}
        self._origins: dict[Local, _Key] = {}
        self._keys = Keys()
        self._event_numbers: dict[str, int] = {"": 0}
        self.batch_ends = cache(self._batch_ends)
        self.fetched = cache(self._fetched)
        self.fenced_epoch = cache(self._fenced_epoch)

    def intern(self, node: AnyNode) -> Local:
        """The number of the node's state; the node must not be changed any more."""
        key = self._keys.key(node)
        local = self._locals.get(key)
        if local is None:
            local = self._locals[key] = len(self.nodes)
            self.nodes.append(node)
        return local

    def _controller(self, local: Local) -> ControllerNode:
        node = self.nodes[local]
        assert isinstance(node, ControllerNode)
        return node

    def _batch_ends(self, controller: Local) -> tuple[Offset, ...]:
        log = self._controller(controller).storage.open_log(METADATA_LOG)
        return tuple(batch.next_offset for batch in log.read(0, _MAX_BYTES))

    def _fetched(self, controller: Local, offset: Offset, end: Offset, fetch_id: int) -> int:
        """The number of the answer to a broker's fetch of the metadata log: the batches between these offsets."""
        node = self._controller(controller)
        log = node.storage.open_log(METADATA_LOG)
        batches = [batch for batch in log.read(offset, _MAX_BYTES) if offset <= batch.base_offset < end]
        return VALUES.number(
            QuorumFetchResponse(
                correlation_id=fetch_id,
                leader_id=FIRST_CONTROLLER,
                leader_epoch=node.replica.epoch,
                high_watermark=end,
                batches=tuple(batches),
            )
        )

    def _fenced_epoch(self, controller: Local, broker: NodeId) -> Epoch | None:
        """The broker's epoch if it is registered and fenced, -1 if it is unfenced, None if it is not registered."""
        registration = self._controller(controller).state.image.brokers.get(broker)
        if registration is None:
            return None
        return registration.broker_epoch if registration.fenced else NO_EPOCH

    def new_controller(self) -> ControllerNode:
        spec, controller = self._spec, FIRST_CONTROLLER
        return ControllerNode(controller, spec.controller_ids, spec.config, formatted_disk(), ConstantRandom(0))

    def new_store(self) -> StoreNode:
        return StoreNode(self._spec.store_settings, SimStorage(), ConstantRandom(0))

    def _copy(self, local: Local) -> AnyNode:
        inputs: list[_Key] = []
        while isinstance(node := self.nodes[local], V3BrokerNode) and node.is_suspended:
            inputs.append(self._origins[local])
            local = inputs[-1][0]
        copied: AnyNode = copy_of(node)
        for key in reversed(inputs):
            self._act(copied, key)
        return copied

    def receive(self, local: Local, sender: NodeId, message: int) -> Outcome:
        return self._step((local, sender, message))

    def fire(self, local: Local, name: str) -> Outcome:
        return self._step((local, name))

    def start(self, local: Local, incarnation: int) -> Outcome:
        """A dead broker is started on its disk; `incarnation` differs from all its former incarnations."""
        key, spec, rng = (local, "start", incarnation), self._spec, ConstantRandom(incarnation)
        if (outcome := self._outcomes.get(key)) is not None:
            return outcome
        dead = self._copy(local)
        assert isinstance(dead, DeadBroker)
        node: BaseBroker
        if spec.has_store_metadata:
            node = V3BrokerNode(dead.broker, spec.config, spec.store_settings, dead.disk, rng)
        else:
            node = BrokerNode(dead.broker, spec.controller_ids, spec.config, dead.disk, rng)
        return self._remember(key, node, node.start(0))

    def wake(self, local: Local, now_ms: TimeMs) -> Outcome:
        return self._step((local, WAKE_TIMER, now_ms))

    def take_over(self, local: Local) -> Outcome:
        """Another controller begins with this one's log, in the next epoch, and without its memory."""
        key = (local, "take over")
        outcome = self._outcomes.get(key)
        if outcome is None:
            spec, former = self._spec, self._copy(local)
            assert isinstance(former, ControllerNode)
            rng = ConstantRandom(former.state.image.next_offset)
            node = ControllerNode(FIRST_CONTROLLER, spec.controller_ids, spec.config, former.storage, rng)
            outcome = self._remember(key, node, node.start(0))
        return outcome

    def crash(self, local: Local, loss: Loss) -> Local:
        """What is left of a running broker after a crash."""
        key = (local, loss)
        outcome = self._outcomes.get(key)
        if outcome is None:
            node = self.nodes[local]
            assert isinstance(node, BaseBroker)
            disk: SimStorage = copy_of(_disk(node))
            disk.apply_loss(loss)
            outcome = self._remember(key, _dead(node, disk), [])
        return outcome.local

    def _act(self, node: AnyNode, key: _Key) -> list[Effect]:
        """Gives a running node the input of the key: a message with its sender, or a timer."""
        assert not isinstance(node, DeadBroker)
        match key[1:]:
            case (int(sender), int(message)):
                return node.receive(0, sender, message_of(message))
            case (str(timer),):
                return node.fire(self._late_ms, timer)
            case (str(timer), int(now_ms)) if timer == WAKE_TIMER:
                return node.fire(now_ms, timer)
        raise ProtocolInvariantError(f"{key} is no input")

    def _step(self, key: _Key) -> Outcome:
        outcome = self._outcomes.get(key)
        if outcome is None:
            node = self._copy(key[0])
            effects = self._act(node, key)
            if any(isinstance(effect, Exit) for effect in effects):
                assert isinstance(node, BaseBroker)
                node = _dead(node, _disk(node))
            outcome = self._remember(key, node, effects)
        return outcome

    def _remember(self, key: _Key, node: AnyNode, effects: list[Effect]) -> Outcome:
        sends = tuple((effect.to, VALUES.number(effect.message)) for effect in effects if isinstance(effect, Send))
        traces = tuple(effect for effect in effects if isinstance(effect, Trace))
        local = self.intern(node)
        self._origins.setdefault(local, key)
        events_number = self._event_numbers.setdefault("\n".join(map(repr, traces)), len(self._event_numbers))
        decides = any(isinstance(trace, RecoveryDecided) for trace in traces)
        outcome = self._outcomes[key] = Outcome(events_number, local, sends, traces, _acknowledged(sends), decides)
        return outcome

    def sizes(self) -> Mapping[str, int]:
        """How many states and steps of nodes were computed."""
        return {"node_states": len(self.nodes), "node_steps": len(self._outcomes)}


def _acknowledged(sends: Sequence[tuple[NodeId, int]]) -> Offset:
    answers = (message_of(number) for receiver, number in sends if is_client(receiver))
    produced = (answer for answer in answers if isinstance(answer, ProduceResponse))
    return max((answer.base_offset for answer in produced if answer.error is ErrorCode.NONE), default=NO_OFFSET)


def _dead(node: BaseBroker, disk: SimStorage) -> DeadBroker:
    """What remains of a broker with that disk, without its copy of the metadata log: the next incarnation fetches the
    log from its start, and how much of it was there makes no difference.
    """
    if isinstance(node, BrokerNode):
        disk.delete_log(METADATA_LOG)
        disk.delete_file(state_file.FILE)
    return DeadBroker(node.node_id, disk)


def _disk(broker: BaseBroker) -> SimStorage:
    assert isinstance(broker.storage, SimStorage)
    return broker.storage


def message_of(number: int) -> Message:
    message = VALUES.value(number)
    assert isinstance(message, Message)
    return message
