"""What a leader does about an unclean election: the data-loss routine, and the word that it is over (KIP-704).

A partition whose leader was elected uncleanly is RECOVERING: records that were committed may be missing from the
leader's log. Whoever leads it in that state runs a routine for it, the *hook*, and only when that has run its time asks
the controller to clear the state (C5, C8). Until then the ISR stays at one member (C11): nobody is let in, and a
proposal that is made for another reason carries RECOVERING on (C6).

The hook runs once for each leader epoch in which this broker leads RECOVERING, whatever an earlier leader did: a leader
that dies between the routine and the controller's answer leaves the state to the next one (M58, N13). Leadership that
ends takes a routine under way with it.

The hook is a function of what the leader knows. It is asked when leadership begins and says how long the routine
takes; a node cannot wait, so a timer stands for the routine. The config `unclean.leader.hook` names the function; the
host looks it up and gives it to the node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, cast

from protocol.broker.context import BrokerContext, Replica, log_name
from protocol.broker.isr_manager import IsrManager
from protocol.broker.leadership import Leadership
from protocol.config import UNCLEAN_LEADER_HOOK, ConfigError
from protocol.errors import ProtocolInvariantError
from protocol.ids import Epoch, Offset, TimeMs, TopicIdPartition, TopicPartition
from protocol.metadata.partition import LeaderRecoveryState

RECOVERY_PREFIX = "data-loss/"


class DataLossHook(Protocol):
    """The routine that a broker runs for a partition that it leads after an unclean election.

    `log_end` is the leader's log end as it takes up `leader_epoch`. Returns for how many milliseconds the routine runs;
    at 0 it is over at once. Must depend on its arguments alone, so that one seed gives one run.
    """

    def __call__(self, partition: TopicPartition, leader_epoch: Epoch, log_end: Offset) -> int: ...


def no_routine(partition: TopicPartition, leader_epoch: Epoch, log_end: Offset) -> int:
    """The hook of a broker that has nothing to do about lost data."""
    return 0


def hook_named(name: str, resolve: Callable[[str], object]) -> DataLossHook:
    """The hook that the config `unclean.leader.hook` names (`module:function`); `no_routine` where it is empty.

    `resolve` finds an object by such a name, as `pkgutil.resolve_name` does. ConfigError where it finds no function.
    """
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
    """Runs the hook for the partitions that one broker leads."""

    def __init__(self, context: BrokerContext, isr_manager: IsrManager, hook: DataLossHook) -> None:
        self._context = context
        self._isr = isr_manager
        self._hook = hook
        self._running: set[TopicIdPartition] = set()

    def lead(self, replica: Replica, leadership: Leadership, now_ms: TimeMs) -> None:
        """The replica has become leader of a new leader epoch. ProtocolInvariantError where the hook's answer is no
        number of milliseconds.
        """
        if leadership.recovery_state is not LeaderRecoveryState.RECOVERING:
            return
        epoch, log_end = leadership.leader_epoch, replica.log.end_offset
        duration_ms = self._hook(replica.name, epoch, log_end)
        if type(duration_ms) is not int or duration_ms < 0:
            raise ProtocolInvariantError(f"the data-loss hook answered {duration_ms!r} for {replica.name}")
        self._context.out.trace(
            "data_loss_routine", replica.name, leader_epoch=epoch, log_end=log_end, duration_ms=duration_ms
        )
        self._running.add(replica.key)
        if duration_ms:
            self._context.out.set_timer(RECOVERY_PREFIX + log_name(replica.key), now_ms + duration_ms)
        else:
            self._finish(replica, leadership)

    def resign(self, replica: Replica) -> None:
        """The replica leads no more."""
        if replica.key in self._running:
            self._running.discard(replica.key)
            self._context.out.cancel_timer(RECOVERY_PREFIX + log_name(replica.key))

    def fire(self, name: str) -> None:
        """The time of a routine is over; whoever resigns cancels the timer, so the replica still leads."""
        topic_id, index = name.removeprefix(RECOVERY_PREFIX).rsplit("/", 1)
        replica = self._context.replicas[TopicIdPartition(topic_id, int(index))]
        if replica.leadership is not None:
            self._finish(replica, replica.leadership)

    def _finish(self, replica: Replica, leadership: Leadership) -> None:
        self._running.discard(replica.key)
        leadership.data_loss_handled = True
        self._context.out.trace("data_loss_handled", replica.name, leader_epoch=leadership.leader_epoch)
        self.propose(replica, leadership)

    def propose(self, replica: Replica, leadership: Leadership) -> None:
        """Asks the controller to clear the state, once the routine is over and unless a proposal is in flight."""
        if leadership.recovery_state is LeaderRecoveryState.RECOVERING and leadership.data_loss_handled:
            self._isr.propose(replica, leadership.isr)
