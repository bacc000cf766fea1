"""The simulator: the nodes of the protocol in one process, with one heap of events and a virtual clock.

Events are ordered by time, then by kind (messages before timers before actions of the experiment), then by the ids of
the nodes involved, and last by the order in which they were scheduled. Nothing else decides, so a seed replays a run
exactly, and leaving out an event does not reorder the others. Faults are applied between events.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from pkgutil import resolve_name
from random import Random
from typing import Final, Literal
from zlib import crc32

from experiments.engines.port import ClusterSpec, Loss, TraceEvent, enables_recovery
from experiments.engines.sim.disk import SimStorage, formatted_disk
from experiments.engines.sim.network import NODE_BITS, SEQUENCE_BITS, Disturbance, Network, NetworkModel
from experiments.engines.sim.recorder import Change, Recorder
from experiments.engines.sim.timers import Timer, Timers
from protocol.broker.recovery import DataLossHook, hook_named
from protocol.config import UNCLEAN_LEADER_HOOK, ClusterConfig, ConfigValue
from protocol.contract import CancelTimer, Effect, Exit, Node, Send, SetTimer
from protocol.errors import ProtocolInvariantError
from protocol.events.base import Trace
from protocol.events.controller import FeatureLevelChanged
from protocol.events.registry import text_of
from protocol.ids import (
    DRIVER,
    RECOVERY_MANAGER,
    STORE,
    NodeId,
    TimeMs,
    is_broker,
    is_client,
    is_recovery_manager,
    is_store,
)
from protocol.log.tail import trace_of
from protocol.messages.base import Message
from protocol.messages.codec import decode, encode
from protocol.messages.metadata_batch import forget_unpacked
from protocol.messages.store import ExpireSessions
from protocol.nodes.broker import BrokerNode
from protocol.nodes.broker_sessions import SESSION_PREFIX
from protocol.nodes.client import ClientNode
from protocol.nodes.controller import ControllerNode
from protocol.nodes.recovery_manager import RecoveryManagerNode
from protocol.v3.broker.node import V3BrokerNode
from protocol.v3.store.node import StoreNode

_DELIVER: Final = 0
_TIMER: Final = 1
_CALL: Final = 2
_KIND_SHIFT = 48 + SEQUENCE_BITS
_TIME_SHIFT = 50 + SEQUENCE_BITS
_MS = 1 << _TIME_SHIFT
"""The heap holds one integer per event: time, then order, then the sequence number."""

_Delivery = tuple[Literal[0], NodeId, NodeId, Message, int]
"""(_DELIVER, target, source, message, the target's incarnation)."""
_DueTimer = tuple[Literal[1], Timer, TimeMs]
"""(_TIMER, the timer, the time for which the event was scheduled)."""
_Event = _Delivery | _DueTimer | tuple[Literal[2], Callable[[], None]]
_HASHED_AT_ONCE = 1_000
"""Trace events. Many in a row take a third of the time that they take one by one, between other work."""

_ANY = -1
"""The incarnation of a message that reaches whichever runs when it arrives."""


def unobserved(target: NodeId, message: Message) -> None:
    """The `on_delivery` of a cluster that nothing observes."""


@dataclass(frozen=True, slots=True)
class Clock:
    """The clock of a node: an affine function of true time, `skew_ms` ahead of it at `since_ms`, which gains `drift` ms
    (over -1,000) per second. Within an incarnation it never goes back (`protocol.contract`).
    """

    skew_ms: int = 0
    since_ms: TimeMs = 0
    drift: int = 0

    def shows(self, true_ms: TimeMs) -> TimeMs:
        return true_ms + self.skew_ms + (true_ms - self.since_ms) * self.drift // 1_000

    def reaches(self, shown_ms: TimeMs) -> TimeMs:
        """The first true time at which the clock shows at least this."""
        if not self.drift:
            return shown_ms - self.skew_ms
        return self.since_ms - (self.since_ms + self.skew_ms - shown_ms) * 1_000 // (1_000 + self.drift)

    def adjusted(self, now_ms: TimeMs, jump_ms: int, drift: int) -> Clock:
        """The clock from now on: `jump_ms` further ahead than it is, and with that drift."""
        return Clock(self.shows(now_ms) - now_ms + jump_ms, now_ms, drift)


class SimCluster:
    """A simulated cluster. It has no more attributes than CPython 3.11 keeps without a dict, which are 29.

    `model` is the latency of links. `elide_idle` leaves out the events of idle timers (`timers.py`), `paranoid` encodes
    and decodes every message and record on its way (otherwise objects pass by reference), `keep_traces` collects trace
    events in `traces`, and with `instant_detection` a broker's session with the controller or the store expires at its
    crash. `build` is the node factory: it is asked for each node that starts, and what it returns None for is built as
    the cluster's spec says. With `outlives_process` messages are those of a network without connections: they reach the
    next incarnation of their target, and get lost where there is no such node.

    `on_event` is called with (time, node) after every event, once its effects are carried out; `on_message` with
    (source, target, message) for every message sent, `on_delivery` with (target, message) before a node takes one;
    `recorder` with all that happens (`recorder.py`); `on_outcome` with what nodes send to the experiment, by default
    kept in `outcomes`. ConfigError where the config names a data-loss hook that does not exist.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        model: NetworkModel | None = None,
        *,
        elide_idle: bool = True,
        paranoid: bool = False,
        keep_traces: bool = True,
        instant_detection: bool = False,
        build: Callable[[NodeId], Node | None] | None = None,
        outlives_process: bool = False,
    ) -> None:
        self.spec = spec
        self.build = build or (lambda node: None)
        self.now_ms: TimeMs = 0
        self.event_count = 0
        self.network = Network(spec.seed, model or NetworkModel())
        self.nodes: dict[NodeId, Node] = {}
        self.disks: dict[NodeId, SimStorage] = {node: SimStorage(self._read_clock) for node in spec.member_ids}
        first_voters = spec.first_voters
        for key in first_voters.keys:
            self.disks[key.id] = formatted_disk(key.id, first_voters, self._read_clock)
        self.outcomes: dict[int, Message] = {}
        self.traces: list[TraceEvent] = []
        self.trace_observers: list[Callable[[TimeMs, NodeId, Trace], None]] = []
        self.on_event: Callable[[TimeMs, NodeId], None] | None = None
        self.on_message: Callable[[NodeId, NodeId, Message], None] | None = None
        self.on_delivery: Callable[[NodeId, Message], None] = unobserved
        self.on_outcome: Callable[[Message], None] = self._keep_outcome
        self.recorder: Recorder | None = None
        self._hook()
        self._paranoid = paranoid
        self._keep_traces = keep_traces
        self._instant_detection = instant_detection
        self._hash = hashlib.blake2b(digest_size=16)
        self._unhashed: list[tuple[TimeMs, NodeId, Trace]] = []
        self._heap: list[int] = []
        self._events: dict[int, _Event] = {}
        self._sequence = 0
        self._incarnations: dict[NodeId, int] = dict.fromkeys(spec.member_ids, 0)
        self._addressed = dict.fromkeys(spec.member_ids, _ANY) if outlives_process else self._incarnations
        self._backlogs: dict[NodeId, list[_Event]] = {}
        self._clocks: dict[NodeId, Clock] = {}
        self._configs: dict[NodeId, ClusterConfig] = {}
        self._timers = Timers(self._push_timer, self._is_sound, self._is_gone, self.network.model.base_ms, elide_idle)

    # -- running -------------------------------------------------------------------------------------------------------

    def step(self, until_ms: TimeMs) -> bool:
        """Runs the next event that is due by `until_ms`; returns False, with the clock there, if there is none."""
        heap = self._heap
        while heap:
            due_ms = heap[0] >> _TIME_SHIFT
            if due_ms > until_ms:
                break
            if self._dispatch(due_ms, self._events.pop(heappop(heap))):
                return True
        self.now_ms = max(self.now_ms, until_ms)
        return False

    def run_until(self, until_ms: TimeMs) -> None:
        """Runs all events that are due by `until_ms`."""
        heap, events, end = self._heap, self._events, (until_ms + 1) * _MS
        while heap and heap[0] < end:
            place = heappop(heap)
            self._dispatch(place >> _TIME_SHIFT, events.pop(place))
        self.now_ms = max(self.now_ms, until_ms)

    def _dispatch(self, due_ms: TimeMs, event: _Event) -> bool:
        """Runs one event; returns False if void (cut link, ended incarnation, paused node, timer set again)."""
        if event[0] == _DELIVER:
            _, target, source, message, incarnation = event
            node = self.nodes.get(target)
            if node is None or (self._incarnations[target] != incarnation and incarnation != _ANY):
                return False
            if not self.network.is_faultless and self.network.is_cut(source, target):
                return False
            if target in self._backlogs:
                self._backlogs[target].append(event)
                return False
            self.now_ms = due_ms
            if self.recorder is not None:
                self.recorder.delivered(due_ms, source, target, message)
            self.on_delivery(target, message)
            shown_ms = self._clock(target, due_ms) if self._clocks else due_ms
            self._carry_out(target, node.receive(shown_ms, source, message), due_ms)
            if self.on_event is not None:
                self.on_event(due_ms, target)
        elif event[0] == _TIMER:
            _, timer, queued_ms = event
            if not self._timers.is_due(timer, queued_ms, due_ms):
                return False
            owner = timer.owner
            if owner in self._backlogs:
                self._backlogs[owner].append(event)
                return False
            self.now_ms = due_ms
            self._timers.mark_fired(timer)
            if self.recorder is not None:
                self.recorder.fired(due_ms, owner, timer.name)
            shown_ms = self._clock(owner, due_ms) if self._clocks else due_ms
            self._carry_out(owner, self.nodes[owner].fire(shown_ms, timer.name), due_ms)
            if self.on_event is not None:
                self.on_event(due_ms, owner)
        else:
            self.now_ms = due_ms
            event[1]()
        self.event_count += 1
        return True

    def call_at(self, at_ms: TimeMs, action: Callable[[], None]) -> None:
        """Schedules `action` between events at `at_ms`."""
        self._push(at_ms, _CALL << _KIND_SHIFT, (_CALL, action))

    def _push(self, due_ms: TimeMs, order: int, event: _Event) -> None:
        self._sequence += 1
        place = due_ms * _MS + order + self._sequence
        self._events[place] = event
        heappush(self._heap, place)

    def _push_timer(self, due_ms: TimeMs, timer: Timer) -> None:
        if not timer.order:
            among_timers = (timer.owner << NODE_BITS) | (crc32(timer.name.encode()) >> 8)
            timer.order = (_TIMER << _KIND_SHIFT) | (among_timers << SEQUENCE_BITS)
        self._push(due_ms, timer.order, (_TIMER, timer, due_ms))

    # -- effects -------------------------------------------------------------------------------------------------------

    def _carry_out(self, node: NodeId, effects: Sequence[Effect], now_ms: TimeMs) -> None:
        clock = self._clocks.get(node) if self._clocks else None
        for effect in effects:
            if type(effect) is Send:
                self._send(node, effect.to, effect.message, now_ms)
            elif type(effect) is SetTimer:
                timer = effect if clock is None else replace(effect, at_ms=clock.reaches(effect.at_ms))
                self._timers.set(node, timer, now_ms)
            elif type(effect) is CancelTimer:
                self._timers.cancel(node, effect.name, now_ms)
            elif isinstance(effect, Trace):
                self._trace(now_ms, node, effect)
            elif type(effect) is Exit:
                self._end_process(node)
                self._record("exited", node)

    def _send(self, source: NodeId, target: NodeId, message: Message, now_ms: TimeMs) -> None:
        if self._paranoid:
            sent, message = message, decode(encode(message))
            forget_unpacked()
            if message != sent:
                raise ProtocolInvariantError(f"{sent} is decoded as {message}")
        if target == DRIVER:
            self.on_outcome(message)
            return
        incarnation = self._addressed.get(target)
        if incarnation is None:
            self._require_unconnected(source, target)
            return
        if self.on_message is not None:
            self.on_message(source, target, message)
        network = self.network
        route = network.route(source, target, type(message))
        if network.is_faultless:
            arrival = network.arrival_ms(now_ms, route)
            if self.recorder is not None:
                self.recorder.sent(now_ms, source, target, message, (arrival,) if target in self.nodes else ())
            if target in self.nodes or incarnation == _ANY:
                self._push(arrival, route.order, (_DELIVER, target, source, message, incarnation))
            return
        arrivals = network.arrivals(now_ms, route)
        is_reachable = (target in self.nodes or incarnation == _ANY) and not network.is_cut(source, target)
        if self.recorder is not None:
            self.recorder.sent(now_ms, source, target, message, arrivals if is_reachable else ())
        if is_reachable:
            for arrival in arrivals:
                self._push(arrival, route.order, (_DELIVER, target, source, message, incarnation))

    def _require_unconnected(self, source: NodeId, target: NodeId) -> None:
        if self._addressed is self._incarnations:
            raise ProtocolInvariantError(f"node {source} sends to {target}, which is not in the cluster")

    def _trace(self, now_ms: TimeMs, node: NodeId, trace: Trace) -> None:
        self._unhashed.append((now_ms, node, trace))
        if len(self._unhashed) >= _HASHED_AT_ONCE:
            self._hash_traces()
        if self._keep_traces:
            self.traces.append(TraceEvent(now_ms, node, trace))
        for observer in self.trace_observers:
            observer(now_ms, node, trace)
        if type(trace) is FeatureLevelChanged and enables_recovery(trace):
            self.call_at(now_ms, self._start_manager)

    def _start_manager(self) -> None:
        if RECOVERY_MANAGER not in self.nodes:
            self.start(RECOVERY_MANAGER)

    def trace_hash(self) -> str:
        """A digest of all trace events so far, in order."""
        self._hash_traces()
        return self._hash.hexdigest()

    def _hash_traces(self) -> None:
        self._hash.update(text_of(self._unhashed).encode())
        self._unhashed.clear()

    def send(self, source: NodeId, target: NodeId, message: Message) -> None:
        """Sends a message from a node whose inputs are the experiment's own (`build`)."""
        self._send(source, target, message, self.now_ms)

    def command(self, client: NodeId, message: Message) -> None:
        """Delivers a message of the experiment to a node at once."""
        now_ms = self._clock(client, self.now_ms)
        self.carry_out(client, self.nodes[client].receive(now_ms, DRIVER, message))

    def carry_out(self, node: NodeId, effects: Sequence[Effect]) -> None:
        """Carries out effects of a node whose inputs are the experiment's own (`build`), as those of an event."""
        self._carry_out(node, effects, self.now_ms)
        if self.on_event is not None:
            self.on_event(self.now_ms, node)

    def _keep_outcome(self, message: Message) -> None:
        self.outcomes[message.command_id] = message  # type: ignore[attr-defined]

    # -- faults --------------------------------------------------------------------------------------------------------

    def _is_sound(self, a: NodeId, b: NodeId) -> bool:
        return a in self.nodes and b in self.nodes and self._is_undisturbed(a, b)

    def _is_gone(self, a: NodeId, b: NodeId) -> bool:
        return a in self.nodes and b not in self.nodes and self._is_undisturbed(a, b)

    def _is_undisturbed(self, a: NodeId, b: NodeId) -> bool:
        """Whether neither node is paused or has a clock that drifts, and the link between them has no fault."""
        backlogs, network = self._backlogs, self.network
        if backlogs and (a in backlogs or b in backlogs):
            return False
        if self._clocks and any(node in self._clocks and self._clocks[node].drift for node in (a, b)):
            return False
        return network.is_faultless or network.is_sound(a, b, self.now_ms)

    def _disturb(self, concerns: Callable[[NodeId, NodeId], bool]) -> None:
        """Wakes the idle timers of node pairs that are about to become unsound, and sends renewals on their way."""
        for tick_ms, node, name in self._timers.disturb(concerns, self.now_ms):
            self._carry_out(node, self.nodes[node].fire(self._clock(node, tick_ms), name), tick_ms)
        self._timers.disturb(concerns, self.now_ms)

    def start(self, node: NodeId) -> None:
        """Starts a node that does not run, on its disk. ProtocolInvariantError if it runs."""
        if node in self.nodes:
            raise ProtocolInvariantError(f"node {node} runs already")
        self._disturb(lambda a, b: b == node)
        self._incarnations[node] += 1
        for dropped in self.disks[node].take_dropped():
            self._trace(self.now_ms, node, trace_of(dropped))
        self.nodes[node] = self._build(node)
        self._record("started", node)
        self.carry_out(node, self.nodes[node].start(self._clock(node, self.now_ms)))

    def configure(self, node: NodeId, values: Mapping[str, ConfigValue]) -> None:
        """Gives a node configs of its own, in force from its next start on."""
        known = self._configs.get(node, self.spec.config)
        self._configs[node] = replace(known, values={**known.values, **values})

    def _build(self, node: NodeId) -> Node:
        own = self.build(node)
        if own is not None:
            return own
        spec, storage = self.spec, self.disks[node]
        config = self._configs.get(node, spec.config)
        rng = Random(f"{spec.seed}/node/{node}/{self._incarnations[node]}")
        if is_broker(node):
            hook = self._hook()
            if spec.has_store_metadata:
                return V3BrokerNode(node, config, spec.store_settings, storage, rng, data_loss_hook=hook)
            rack = spec.rack_of(node)
            return BrokerNode(node, spec.controller_ids, config, storage, rng, rack=rack, data_loss_hook=hook)
        if is_recovery_manager(node):
            return RecoveryManagerNode(config)
        if is_client(node):
            return ClientNode(node, spec.broker_ids, spec.controller_ids or spec.broker_ids, spec.config)
        if is_store(node):
            return StoreNode(spec.store_settings, storage, rng)
        return ControllerNode(node, spec.controller_ids, config, storage, rng)

    def _hook(self) -> DataLossHook:
        """The data-loss hook of the brokers. ConfigError where the config names one that does not exist."""
        return hook_named(str(self.spec.config.values[UNCLEAN_LEADER_HOOK]), resolve_name)

    def crash(self, node: NodeId, loss: Loss) -> int:
        """Ends a node at once, if it runs; returns the number of records that its disk lost."""
        if node not in self.nodes:
            return self.disks[node].apply_loss(loss)
        self._disturb(lambda a, b: node in (a, b))
        self._end_process(node)
        self._record("crashed", node, detail=loss.kind)
        lost = self.disks[node].apply_loss(loss)
        if self._instant_detection and is_broker(node) and STORE in self.nodes:
            self.command(STORE, ExpireSessions(node_id=node))
        elif self._instant_detection and is_broker(node):
            for controller in self.spec.controller_ids:
                self._timers.expire_now(controller, f"{SESSION_PREFIX}{node}", self.now_ms)
        return lost

    def _end_process(self, node: NodeId) -> None:
        self._disturb(lambda a, b: node in (a, b))
        del self.nodes[node]
        self._backlogs.pop(node, None)
        self._incarnations[node] += 1
        self._timers.forget_node(node)

    def pause(self, node: NodeId) -> None:
        """Holds back the node's events until `resume`; a node that is paused stays so."""
        if node in self._backlogs:
            return
        self._disturb(lambda a, b: node in (a, b))
        self._backlogs[node] = []
        self._record("paused", node)

    def resume(self, node: NodeId) -> None:
        """Ends a pause, if there is one; the events that were held back are due now."""
        if node not in self._backlogs:
            return
        for event in self._backlogs.pop(node):
            self._push(self.now_ms, 0, event)
        self._record("resumed", node)

    def incarnation_of(self, node: NodeId) -> int:
        """A number that changes with every start and end of a node."""
        return self._incarnations[node]

    def is_paused(self, node: NodeId) -> bool:
        return node in self._backlogs

    def set_link(self, source: NodeId, target: NodeId, up: bool) -> None:
        if not up:
            self._disturb(lambda a, b: {a, b} == {source, target})
        self.network.set_link(source, target, up)
        self._record("healed" if up else "cut", source, target)

    def disturb_link(self, disturbance: Disturbance) -> None:
        """Begins a disturbance of one direction of a link."""
        self._disturb(lambda a, b: {a, b} == {disturbance.source, disturbance.target})
        self.network.disturb(disturbance)
        self._record("disturbed", disturbance.source, disturbance.target, disturbance.effect)

    def clear_disturbance(self, disturbance: Disturbance) -> None:
        """Ends a disturbance of one direction of a link; idle timers that slept through it are awake then."""
        if disturbance.keeps_idle:
            self._disturb(lambda a, b: {a, b} == {disturbance.source, disturbance.target})
        self.network.clear_disturbance(disturbance)
        self._record("restored", disturbance.source, disturbance.target, disturbance.effect)

    def _record(self, change: Change, node: NodeId, peer: NodeId | None = None, detail: str = "") -> None:
        if self.recorder is not None:
            self.recorder.changed(self.now_ms, change, node, peer, detail)

    def set_clock(self, node: NodeId, skew_ms: int) -> None:
        """Sets the clock of a node that does not run `skew_ms` ahead of true time, from its next incarnation on."""
        if node in self.nodes:
            raise ProtocolInvariantError(f"node {node} runs, and its time must not go back within an incarnation")
        self._clocks[node] = Clock(skew_ms)

    def adjust_clock(self, node: NodeId, jump_ms: int, drift: int) -> None:
        """Moves the clock of a node ahead by `jump_ms` at once, and lets it gain `drift` ms per second from now on.
        Timers that are set fire when they would have fired. ProtocolInvariantError for a jump back, or a clock that
        stands.
        """
        if jump_ms < 0 or drift <= -1_000:
            raise ProtocolInvariantError(f"the clock of node {node} must not stand or go back: {jump_ms} ms, {drift}")
        self._disturb(lambda a, b: node in (a, b))
        self._clocks[node] = self._clocks.get(node, Clock()).adjusted(self.now_ms, jump_ms, drift)

    def _read_clock(self) -> TimeMs:
        return self.now_ms

    def time_at(self, node: NodeId) -> TimeMs:
        return self._clock(node, self.now_ms)

    def _clock(self, node: NodeId, true_ms: TimeMs) -> TimeMs:
        """The time that the node's clock shows."""
        clock = self._clocks.get(node)
        return true_ms if clock is None else clock.shows(true_ms)
