"""What a leader does after an unclean election: runs the data-loss routine, then clears the recovery state (KIP-704).

A partition whose leader was elected uncleanly is RECOVERING: committed records may be missing from the leader's log.
The leader runs a routine, the *hook*, and asks the controller to clear the state when the routine is over (C5, C8).
Until then the ISR keeps its one member (C11), and proposals for other reasons keep RECOVERING (C6).

The hook runs once in each leader epoch in which this broker leads the partition RECOVERING, also if an earlier leader
has run it: that leader may have crashed before the controller stored RECOVERED (M58, N13). When the broker stops
leading, a running routine ends.

The hook is called when the leader epoch begins and returns how long the routine takes; since a node cannot wait, a
timer represents the routine. The config `unclean.leader.hook` names the function, which the host resolves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from protocol.broker.context import BrokerContext, Replica, log_name
from protocol.broker.isr_manager import IsrManager
from protocol.broker.leadership import Leadership
from protocol.config import UNCLEAN_LEADER_HOOK, ConfigError
from protocol.errors import ProtocolInvariantError
from protocol.events.broker import DataLossHandled, DataLossRoutineBegan
from protocol.ids import Epoch, Offset, TimeMs, TopicIdPartition, TopicPartition
from protocol.kafka_rules import RECOVERED_WITH_NEXT_CHANGE
from protocol.metadata.partition import LeaderRecoveryState

RECOVERY_PREFIX = "data-loss/"


DataLossHook = Callable[[TopicPartition, Epoch, Offset], int]
"""The routine after an unclean election, for the partition, its leader epoch, and the log end at which that begins.
Returns how long it takes in ms (0: it is over), as a function of its arguments alone, so that runs are reproducible.
"""


def no_routine(partition: TopicPartition, leader_epoch: Epoch, log_end: Offset) -> int:
    return 0


def hook_named(name: str, resolve: Callable[[str], object]) -> DataLossHook:
    """The function that `unclean.leader.hook` names, resolved as by `pkgutil.resolve_name`; ConfigError."""
    if not name:
        return no_routine
    try:
        found = resolve(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(UNCLEAN_LEADER_HOOK, name, f"module:function that can be imported ({error})") from error
    if not callable(found):
        raise ConfigError(UNCLEAN_LEADER_HOOK, name, f"module:function; that is a {type(found).__name__}")
    return cast("DataLossHook", found)


class LeaderRecovery:
    def __init__(self, context: BrokerContext, isr_manager: IsrManager, hook: DataLossHook) -> None:
        self._context = context
        self._isr = isr_manager
        self._hook = hook
        self._running: set[TopicIdPartition] = set()

    def lead(self, replica: Replica, leadership: Leadership, now_ms: TimeMs) -> None:
        """Starts the routine of a RECOVERING leadership. ProtocolInvariantError if its duration is not an int >= 0."""
        if leadership.recovery_state is not LeaderRecoveryState.RECOVERING:
            return
        epoch, log_end = leadership.leader_epoch, replica.log.end_offset
        duration_ms = self._hook(replica.name, epoch, log_end)
        if type(duration_ms) is not int or duration_ms < 0:
            raise ProtocolInvariantError(f"the data-loss hook answered {duration_ms!r} for {replica.name}")
        self._context.out.trace(DataLossRoutineBegan(replica.name, epoch, log_end, duration_ms))
        self._running.add(replica.key)
        if duration_ms:
            self._context.out.set_timer(RECOVERY_PREFIX + log_name(replica.key), now_ms + duration_ms)
        else:
            self._finish(replica, leadership)

    def resign(self, replica: Replica) -> None:
        if replica.key in self._running:
            self._running.discard(replica.key)
            self._context.out.cancel_timer(RECOVERY_PREFIX + log_name(replica.key))

    def fire(self, now_ms: TimeMs, log: str) -> None:
        """The routine of the log `log` (as `log_name` names it) is over."""
        topic_id, index = log.rsplit("/", 1)
        replica = self._context.replicas[TopicIdPartition(topic_id, int(index))]
        if replica.leadership is not None:
            self._finish(replica, replica.leadership)

    def _finish(self, replica: Replica, leadership: Leadership) -> None:
        self._running.discard(replica.key)
        leadership.data_loss_handled = True
        self._context.out.trace(DataLossHandled(replica.name, leadership.leader_epoch))
        self.propose(replica, leadership)

    def propose(self, replica: Replica, leadership: Leadership) -> None:
        """Proposes RECOVERED to the controller once the routine is over, unless a proposal is in flight."""
        if leadership.recovery_state is not LeaderRecoveryState.RECOVERING or not leadership.data_loss_handled:
            return
        if RECOVERED_WITH_NEXT_CHANGE in self._context.config.kafka_rules:
            leadership.recovery_state = LeaderRecoveryState.RECOVERED
        else:
            self._isr.propose(replica, leadership.isr)
