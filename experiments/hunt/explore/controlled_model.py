"""What a search can do to the controller, and the unclean recovery manager as one more node of the model.

- A failover: the controller ends, and another one begins with its log, in the next epoch and without its memory.
  Records that the former one had not committed need no case of their own: what follows from them, answers and trace
  events, is held back until they are committed, so losing them is losing the requests that they came from. Of the
  requests under way to the controller any may be lost with it; one of a leader may then be repeated.
- Recoveries: the topic has a recovery strategy, and the manager's queries, answers and results are messages in queues
  of their own. A result that the manager sends because the time of the recovery is over is a late message (a negative
  number in its queue), so that the suite knows how long was waited. A query is repeated where the answer would count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations

from experiments.faults.schema import Bounds
from experiments.hunt.explore.machines import AnyNode, Local, Outcome, message_of
from experiments.hunt.explore.model import CONTROLLER, Model
from experiments.hunt.explore.states import FAILOVERS, RECOVERIES, RETRIES, Action, State, Step, Successor
from protocol.config import UNCLEAN_RECOVERY_STRATEGY, UNCLEAN_RECOVERY_TIMEOUT_MS, ClusterConfig
from protocol.ids import RECOVERY_MANAGER, NodeId, TimeMs, is_broker
from protocol.messages.recovery import RecoveryResults
from protocol.nodes.base_broker import BaseBroker
from protocol.nodes.recovery_manager import RecoveryManagerNode
from protocol.recovery.sender import REQUEST_TIMEOUT_MS

TIMEOUT_MS: TimeMs = 5_000
"""`unclean.recovery.timeout.ms` of the topic: longer than a query waits, shorter than a recovery lapses."""
STRATEGIES = ("balanced", "proactive")


class ControlledModel(Model):
    """The transition system with failovers and unclean recoveries of the given strategy, as often as `bounds` say."""

    def __init__(
        self, config: ClusterConfig, brokers: int, min_isr: int, bounds: Bounds, strategy: str = STRATEGIES[0]
    ) -> None:
        self._strategy = strategy
        self._has_manager = bounds.recoveries > 0
        self._counts = cache(self._answer_counts)
        super().__init__(config, brokers, min_isr, bounds)

    def _more_nodes(self) -> Sequence[AnyNode]:
        return (RecoveryManagerNode(self.spec.config),) if self._has_manager else ()

    def _more_links(self) -> Sequence[tuple[NodeId, NodeId]]:
        others = (CONTROLLER, *self._brokers) if self._has_manager else ()
        return [(RECOVERY_MANAGER, other) for other in others] + [(other, RECOVERY_MANAGER) for other in others]

    def _topic_configs(self, min_isr: int) -> dict[str, str | int]:
        configs = super()._topic_configs(min_isr)
        if self._has_manager:
            configs |= {UNCLEAN_RECOVERY_STRATEGY: self._strategy, UNCLEAN_RECOVERY_TIMEOUT_MS: TIMEOUT_MS}
        return configs

    def _place(self, node: NodeId) -> int:
        return 1 + len(self._brokers) if node == RECOVERY_MANAGER else super()._place(node)

    def _take(self, step: Step, node: NodeId, outcome: Outcome, exchange: type | None = None) -> None:
        super()._take(step, node, outcome, exchange)
        for receiver, number in outcome.sends if self._has_manager else ():
            if receiver == RECOVERY_MANAGER:
                self._push(step, node, receiver, number)
            elif node == RECOVERY_MANAGER and not is_broker(receiver):
                self._push(step, node, receiver, -number if step.now_ms else number)

    def _delivery(self, state: State, number: int) -> Iterator[Successor]:
        place = self._nodes + number
        if not state[place]:
            return
        message, left = self.channels.first_of(state[place])
        if message >= 0:
            yield from super()._delivery(state, number)
            return
        step, link = self._open(state), self.links[number]
        step.parts[place] = left
        step.now_ms = TIMEOUT_MS
        self._receive(step, link[1], link[0], -message)
        yield from self._some(state, (step, ("deliver", *link, -message)))

    def _environment(self, state: State) -> Iterator[Successor]:
        yield from super()._environment(state)
        if state[self._first_bound + FAILOVERS]:
            to_controller = [number for number, link in enumerate(self.links) if link[1] == CONTROLLER]
            waiting = [number for number in to_controller if state[self._nodes + number]]
            for count in range(len(waiting) + 1):
                for lost in combinations(waiting, count):
                    yield from self._some(state, self._fail_over(state, lost))
        if self._has_manager:
            if any(self._query_may_help(state, broker) for broker in self._brokers):
                yield from self._some(state, self._wake(state, REQUEST_TIMEOUT_MS))
            if state[self._first_bound + RECOVERIES]:
                yield from self._some(state, self._deadline(state))

    def _fail_over(self, state: State, lost: tuple[int, ...]) -> tuple[Step, Action]:
        """A failover that loses what waits in these queues to the controller."""
        step = self._open(state, FAILOVERS)
        for number in lost:
            step.parts[self._nodes + number] = 0
            step.parts[self._first_bound + RETRIES] += is_broker(self.links[number][0])
        self._take(step, CONTROLLER, self.machines.take_over(step.parts[0]))
        return step, ("fail over", CONTROLLER, *[self.links[number][0] for number in lost])

    def _wake(self, state: State, now_ms: TimeMs) -> tuple[Step, Action]:
        step = self._open(state)
        outcome = self.machines.wake(step.parts[self._place(RECOVERY_MANAGER)], now_ms)
        self._take(step, RECOVERY_MANAGER, outcome)
        return step, ("query again", RECOVERY_MANAGER)

    def _deadline(self, state: State) -> tuple[Step, Action] | None:
        """The end of a recovery's time, where the manager then decides."""
        step = self._open(state, RECOVERIES)
        step.now_ms = TIMEOUT_MS
        outcome = self.machines.wake(step.parts[self._place(RECOVERY_MANAGER)], TIMEOUT_MS)
        if not any(isinstance(message_of(number), RecoveryResults) for _, number in outcome.sends):
            return None
        self._take(step, RECOVERY_MANAGER, outcome)
        return step, ("decide", RECOVERY_MANAGER)

    def _query_may_help(self, state: State, broker: NodeId) -> bool:
        """Whether a repeated query of the broker has an answer that counts; nothing is under way between them."""
        are_quiet = self._are_quiet(state, RECOVERY_MANAGER, broker)
        return are_quiet and self._counts(state[1 + len(self._brokers)], state[1 + broker], broker)

    def _answer_counts(self, manager: Local, local: Local, broker: NodeId) -> bool:
        """Whether the broker's answer to a query of the manager counts."""
        if not isinstance(self.machines.nodes[local], BaseBroker):
            return False
        woken = self.machines.wake(manager, REQUEST_TIMEOUT_MS)
        for receiver, query in woken.sends:
            if receiver == broker:
                answers = self.machines.receive(local, RECOVERY_MANAGER, query).sends
                heard = [self.machines.receive(woken.local, broker, number).local for _, number in answers]
                return any(self._answers(local) > self._answers(manager) for local in heard)
        return False

    def _answers(self, manager: Local) -> int:
        node = self.machines.nodes[manager]
        assert isinstance(node, RecoveryManagerNode)
        return node.answer_count
