"""Timers under the virtual clock, and why an idle cluster needs no events.

A healthy idle cluster repeats three exchanges without end: heartbeats, renewals of delayed fetches, metadata fetches.
Each is driven by one periodic timer of a broker (the *active* timer, marked `idle_with`) and postpones a watchdog at
the other end (the *passive* timer, marked `renewed_by`). While both nodes run and the links between them are sound,
firing these timers changes only their own due times, which are known in advance: ticks are one period apart, and a
renewal takes the link's base latency. A watchdog may also belong to the node with the active timer and be postponed by
the peer's answers (marked `echoes`), which takes twice the latency.

So an active timer of a sound pair *sleeps*: it has no event in the heap. A passive timer sleeps while its active timer
does, if both are of the same pair, whichever was set first. An active timer sleeps, too, while the peer does not run,
since all that it would send is lost; passive timers are awake then. Sleep ends

- when the peer starts: the timer gets an event for its next tick;
- when the pair stops being sound: the timer gets an event for its next tick. A tick whose message would be on its way
  now is fired with the time of that tick, so that the message arrives when it would have. Passive timers get the due
  time that their last renewal would have given them;
- when the node sets or cancels the timer itself; then a renewal on its way counts as arrived.

A timer that is awake fires before it sleeps again, also where its node sets it again meanwhile: the message shows the
peer what was lost while the pair was not sound, which the node does not know.

An answer that is on its way when the pair stops being sound counts as arrived too. The trace is the same as with all
timers fired, without the renewals (test_elision). One difference of a round trip is possible: a renewal that crosses an
answer repeats to the leader what the leader has just handled, and may arrive before the follower's own next fetch.

Most timers are watchdogs that are postponed or cancelled long before they are due. So the heap has one event per timer:
postponing or cancelling the timer leaves the event in place, and when it comes up it is scheduled again for the timer's
present due time. Only a timer that is set to an earlier time gets another event, and its previous one is void.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from protocol.contract import SetTimer
from protocol.ids import NodeId, TimeMs

_NEVER: TimeMs = -1
"""The due time of a timer that is not set."""


@dataclass(slots=True)
class _Sleep:
    """The sleep of an active timer; `due_ms`: its due time when it fell asleep, `peer`: the other node of its pair."""

    due_ms: TimeMs
    period_ms: int
    peer: NodeId
    peer_runs: bool


@dataclass(slots=True)
class _Watch:
    """The state of a passive timer: its due time after the last renewal, the time by which a renewal postpones it, the
    node of its pair that does not own the active timer, and the latency of a renewal.
    """

    due_ms: TimeMs
    period_ms: int
    peer: NodeId
    latency_ms: int


@dataclass(slots=True, eq=False)
class Timer:
    """A timer of a node, set or not; there is one object per node and name for the whole run. `due_ms` is its due time,
    `queued_ms` the time of its event in the heap. A passive timer has an `active` one, which lists it in `watchers`.
    `order` is for the heap's owner: its place among the events of a time, 0 while it has none.
    """

    owner: NodeId
    name: str
    due_ms: TimeMs = _NEVER
    queued_ms: TimeMs = _NEVER
    active: Timer | None = None
    watchers: dict[Timer, _Watch] = field(default_factory=dict)
    order: int = 0


class Timers:
    """All timers of all nodes. `push(due, timer)` puts an event into the heap; when that event comes up, `is_due`
    returns whether to fire the timer. `is_sound(a, b)` tests a pair of nodes; `is_gone(a, b)` whether nothing is wrong
    with one except that b does not run. `renewal_latency_ms` is the base latency.
    """

    def __init__(
        self,
        push: Callable[[TimeMs, Timer], None],
        is_sound: Callable[[NodeId, NodeId], bool],
        is_gone: Callable[[NodeId, NodeId], bool],
        renewal_latency_ms: int,
        elide_idle: bool,
    ) -> None:
        self._push = push
        self._is_sound = is_sound
        self._is_gone = is_gone
        self._latency_ms = renewal_latency_ms
        self._elide = elide_idle
        self._timers: defaultdict[NodeId, dict[str, Timer]] = defaultdict(dict)
        self._asleep: dict[Timer, _Sleep] = {}

    def _timer(self, owner: NodeId, name: str) -> Timer:
        own = self._timers[owner]
        timer = own.get(name)
        if timer is None:
            timer = own[name] = Timer(owner, name)
        return timer

    def set(self, node: NodeId, effect: SetTimer, now_ms: TimeMs) -> None:
        timer = self._timer(node, effect.name)
        peer, due_ms = effect.idle_with, effect.at_ms
        if peer is None or not self._elide:
            if timer in self._asleep or timer.active is not None:
                self._cancel(timer, now_ms)
            self._arm(timer, due_ms)
        elif effect.renewed_by is not None:
            self._watch(timer, self._timer(peer, effect.renewed_by), due_ms, now_ms, node, self._latency_ms)
        elif effect.echoes is not None:
            self._watch(timer, self._timer(node, effect.echoes), due_ms, now_ms, peer, 2 * self._latency_ms)
        else:
            self._set_active(timer, peer, due_ms, now_ms)

    def _set_active(self, timer: Timer, peer: NodeId, due_ms: TimeMs, now_ms: TimeMs) -> None:
        """Sets an active timer, which sleeps if its pair is sound or the peer does not run."""
        sleep = self._asleep.get(timer)
        if sleep is not None:
            self._renew_watchers(timer, sleep, _ticks_before(sleep, now_ms))
        elif timer.active is not None:
            self._cancel(timer, now_ms)
        is_awake = sleep is None and timer.due_ms != _NEVER
        can_sleep = not is_awake and self._is_sound(timer.owner, peer) and _will_renew(timer, peer, due_ms)
        if sleep is not None and can_sleep and sleep.peer_runs and sleep.peer == peer:
            sleep.due_ms, sleep.period_ms = due_ms, due_ms - now_ms
            return
        if sleep is not None and not (can_sleep and sleep.peer == peer):
            self._wake(timer, sleep)
        if can_sleep:
            timer.due_ms = _NEVER
            self._asleep[timer] = _Sleep(due_ms, due_ms - now_ms, peer, peer_runs=True)
            for watcher, watch in timer.watchers.items():
                if watch.peer == peer:
                    watcher.due_ms = _NEVER
        elif self._is_gone(timer.owner, peer):
            timer.due_ms = _NEVER
            self._asleep[timer] = _Sleep(due_ms, due_ms - now_ms, peer, peer_runs=False)
        else:
            self._arm(timer, due_ms)

    def _watch(
        self, timer: Timer, active: Timer, due_ms: TimeMs, now_ms: TimeMs, peer: NodeId, latency_ms: int
    ) -> None:
        """Sets a passive timer; `peer` and `latency_ms` as in `_Watch`."""
        if timer.active is active:
            watch = active.watchers[timer]
            watch.due_ms, watch.period_ms, watch.peer, watch.latency_ms = due_ms, due_ms - now_ms, peer, latency_ms
        else:
            self._cancel(timer, now_ms)
            timer.active = active
            active.watchers[timer] = _Watch(due_ms, due_ms - now_ms, peer, latency_ms)
        sleep = self._asleep.get(active)
        if sleep is None or peer != sleep.peer or not sleep.peer_runs:
            self._arm(timer, due_ms)
        else:
            timer.due_ms = _NEVER

    def cancel(self, node: NodeId, name: str, now_ms: TimeMs) -> None:
        self._cancel(self._timer(node, name), now_ms)

    def _cancel(self, timer: Timer, now_ms: TimeMs) -> None:
        timer.due_ms = _NEVER
        _unwatch(timer)
        sleep = self._asleep.get(timer)
        if sleep is not None:
            self._renew_watchers(timer, sleep, _ticks_before(sleep, now_ms))
            self._wake(timer, sleep)

    def is_due(self, timer: Timer, queued_ms: TimeMs, now_ms: TimeMs) -> bool:
        """Whether to fire the timer now that its event for `queued_ms` has come up; if not, the event is void."""
        if timer.queued_ms != queued_ms:
            return False
        due_ms = timer.due_ms
        if due_ms != _NEVER and due_ms <= now_ms:
            return True
        timer.queued_ms = _NEVER
        if due_ms != _NEVER:
            self._arm(timer, due_ms)
        return False

    def mark_fired(self, timer: Timer) -> None:
        """Records that the timer is being fired, and so is no longer set."""
        timer.due_ms = timer.queued_ms = _NEVER
        _unwatch(timer)

    def expire_now(self, node: NodeId, name: str, now_ms: TimeMs) -> None:
        """Makes a timer due now, if it is set."""
        timer = self._timer(node, name)
        if timer.due_ms != _NEVER or timer in self._asleep or timer.active is not None:
            self._cancel(timer, now_ms)
            self._arm(timer, now_ms)

    def forget_node(self, node: NodeId) -> None:
        """Cancels all timers of a node that has ended. Its pairs must have been disturbed first."""
        for timer in self._timers.get(node, {}).values():
            timer.due_ms = timer.queued_ms = _NEVER
            _unwatch(timer)

    def disturb(self, concerns: Callable[[NodeId, NodeId], bool], now_ms: TimeMs) -> list[tuple[TimeMs, NodeId, str]]:
        """Ends the sleep of all timers of the pairs that are about to become unsound (`concerns(owner, peer)`), or
        whose peer is about to start.

        Everything that is due now has been done already, so a tick that falls on now has been sent. Returns the ticks
        (time, owner, name) whose renewal is on its way: the caller must fire them, oldest first, with the time of the
        tick, before anything else.
        """
        on_their_way: list[tuple[TimeMs, NodeId, str]] = []
        for timer, sleep in list(self._asleep.items()):
            if not concerns(timer.owner, sleep.peer):
                continue
            ticks = _ticks_before(sleep, now_ms + 1)
            last_tick = sleep.due_ms + (ticks - 1) * sleep.period_ms
            if ticks and sleep.peer_runs and last_tick + self._latency_ms >= now_ms:
                self._renew_watchers(timer, sleep, ticks - 1)
                on_their_way.append((last_tick, timer.owner, timer.name))
            else:
                self._renew_watchers(timer, sleep, ticks)
                self._arm(timer, sleep.due_ms + ticks * sleep.period_ms)
            self._wake(timer, sleep)
        return sorted(on_their_way)

    def _arm(self, timer: Timer, due_ms: TimeMs) -> None:
        timer.due_ms = due_ms
        if timer.queued_ms == _NEVER or due_ms < timer.queued_ms:
            timer.queued_ms = due_ms
            self._push(due_ms, timer)

    def _renew_watchers(self, timer: Timer, sleep: _Sleep, ticks: int) -> None:
        """Postpones the passive timers of an active timer that would have ticked `ticks` times during its sleep."""
        if ticks and sleep.peer_runs:
            last_tick = sleep.due_ms + (ticks - 1) * sleep.period_ms
            for watch in timer.watchers.values():
                if watch.peer == sleep.peer:
                    watch.due_ms = max(watch.due_ms, last_tick + watch.latency_ms + watch.period_ms)

    def _wake(self, timer: Timer, sleep: _Sleep) -> None:
        """Ends the sleep of an active timer: its passive timers get events."""
        del self._asleep[timer]
        for watcher, watch in timer.watchers.items():
            if watch.peer == sleep.peer:
                self._arm(watcher, watch.due_ms)


def _will_renew(timer: Timer, peer: NodeId, due_ms: TimeMs) -> bool:
    """Whether the next tick of an active timer arrives before its watchers are due; otherwise it must not sleep."""
    for watch in timer.watchers.values():
        if watch.peer == peer and watch.due_ms < due_ms + watch.latency_ms:
            return False
    return True


def _unwatch(timer: Timer) -> None:
    if timer.active is not None:
        del timer.active.watchers[timer]
        timer.active = None


def _ticks_before(sleep: _Sleep, now_ms: TimeMs) -> int:
    """The number of ticks that a sleeping timer would have had before `now_ms`, exclusive."""
    if now_ms <= sleep.due_ms:
        return 0
    return -(-(now_ms - sleep.due_ms) // sleep.period_ms)
