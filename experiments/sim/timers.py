"""Timers under the virtual clock, and why a quiet cluster costs no events.

Theory. Three exchanges go on for ever in a healthy idle cluster: heartbeats, renewals of parked fetches, and the
metadata fetch. Each is driven by one periodic timer of a broker (the *active* timer, marked `idle_with`) and pushes
on a watchdog at the other end (the *passive* timer, marked `renewed_by`). As long as both nodes are up and the links
between them are sound, firing them changes nothing but their own due times, and these are known in advance: ticks are
a period apart, and a renewal takes the link's base latency. A watchdog may also be of the node whose timer it is, and
be pushed on by the peer's answers (marked `echoes`), which takes the latency twice.

So an active timer whose pair is sound is *asleep*: it is in no heap. A passive timer sleeps while its active timer
does, if they are of the same pair, whichever was set first. Sleep ends
- when the pair stops being sound: the timer is put back with the due time of its next tick; a tick whose message
  would be on its way at this moment is fired with the time of that tick, so that the message arrives as it would
  have; passive timers get the due time that their last renewal would have given them;
- when the node sets or cancels the timer itself; then a renewal on its way counts as arrived. An answer that is on its
  way when the pair stops being sound counts as arrived too. The result is the same
  trace as with all timers fired (test_elision), less the renewals. One thing can differ by a round trip: a renewal
  that crosses an answer on its way tells the leader again what it has just dealt with, and may so be ahead of the
  follower's own next fetch.

Most timers are watchdogs that are put off or cancelled long before they are due. So one event per timer lies in the
heap, at the time for which it was first asked for: setting the timer later, or not at all any more, leaves it there,
and when it comes up it goes back with the time that the timer has by then. Only a timer that is set earlier gets
another event, and the one that it had counts for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from protocol.contract import SetTimer
from protocol.ids import NodeId, TimeMs

Key = tuple[NodeId, str]


@dataclass(slots=True)
class _Asleep:
    """A sleeping active timer: its next due time when it fell asleep, its period, and whom it idles with."""

    due_ms: TimeMs
    period_ms: int
    peer: NodeId


@dataclass(slots=True)
class _Watch:
    """A passive timer: its due time as last renewed, how far each renewal pushes it, with whom it idles, and how long a
    renewal takes.
    """

    due_ms: TimeMs
    period_ms: int
    peer: NodeId
    latency_ms: int

    def is_of(self, owner: NodeId, active: Key, peer: NodeId) -> bool:
        """Whether this timer of `owner` idles with the pair of an active timer that sleeps with `peer`."""
        return (owner == active[0] and self.peer == peer) or (owner == peer and self.peer == active[0])


class Timers:
    """All timers of all nodes. `push(due, key)` puts an event into the heap; whether the timer is due when it comes up
    says `is_due`.
    """

    def __init__(
        self,
        push: Callable[[TimeMs, Key], None],
        is_sound: Callable[[NodeId, NodeId], bool],
        renewal_latency_ms: int,
        elide_idle: bool,
    ) -> None:
        self._push = push
        self._is_sound = is_sound
        self._latency_ms = renewal_latency_ms
        self._elide = elide_idle
        self._armed: dict[Key, TimeMs] = {}
        self._queued: dict[Key, TimeMs] = {}
        self._asleep: dict[Key, _Asleep] = {}
        self._watchers: dict[Key, dict[Key, _Watch]] = {}
        self._watched: dict[Key, Key] = {}

    def set(self, node: NodeId, timer: SetTimer, now_ms: TimeMs) -> None:
        """The node set a timer."""
        key = (node, timer.name)
        peer, due_ms = timer.idle_with, timer.at_ms
        if self._elide and peer is not None and timer.renewed_by is not None:
            self._watch(key, (peer, timer.renewed_by), _Watch(due_ms, due_ms - now_ms, peer, self._latency_ms), now_ms)
            return
        if self._elide and peer is not None and timer.echoes is not None:
            watch = _Watch(due_ms, due_ms - now_ms, peer, 2 * self._latency_ms)
            self._watch(key, (node, timer.echoes), watch, now_ms)
            return
        if key in self._asleep or key in self._watched:
            self.cancel(key, now_ms)
        if self._elide and peer is not None and self._is_sound(node, peer) and self._will_renew(key, peer, due_ms):
            self._armed.pop(key, None)
            self._asleep[key] = _Asleep(due_ms, due_ms - now_ms, peer)
            for watcher, _ in self._watchers_of(key, peer):
                del self._armed[watcher]
        else:
            self._arm(key, due_ms)

    def _watch(self, key: Key, active: Key, watch: _Watch, now_ms: TimeMs) -> None:
        """The node set a passive timer."""
        if self._watched.get(key) != active:
            self.cancel(key, now_ms)
            self._watched[key] = active
        self._watchers.setdefault(active, {})[key] = watch
        asleep = self._asleep.get(active)
        if asleep is None or not watch.is_of(key[0], active, asleep.peer):
            self._arm(key, watch.due_ms)
        else:
            self._armed.pop(key, None)

    def _watchers_of(self, key: Key, peer: NodeId) -> list[tuple[Key, _Watch]]:
        """The passive timers that idle with the pair of an active one."""
        return [item for item in self._watchers.get(key, {}).items() if item[1].is_of(item[0][0], key, peer)]

    def _will_renew(self, key: Key, peer: NodeId, due_ms: TimeMs) -> bool:
        """Whether the next tick of an active timer arrives before any of its watchers is due; if not, nobody sleeps."""
        return all(watch.due_ms >= due_ms + watch.latency_ms for _, watch in self._watchers_of(key, peer))

    def cancel(self, key: Key, now_ms: TimeMs) -> None:
        """The node forgets a timer (or is about to set it anew)."""
        self._armed.pop(key, None)
        self._unwatch(key)
        if key in self._asleep:
            asleep = self._asleep.pop(key)
            self._wake_watchers(key, asleep, self._ticks_before(asleep, now_ms))

    def is_due(self, key: Key, queued_ms: TimeMs, now_ms: TimeMs) -> bool:
        """Whether the timer is to be fired now that its event for `queued_ms` has come up; if not, the event has been
        dealt with.
        """
        if self._queued.get(key) != queued_ms:
            return False
        due_ms = self._armed.get(key)
        if due_ms is not None and due_ms <= now_ms:
            return True
        del self._queued[key]
        if due_ms is not None:
            self._arm(key, due_ms)
        return False

    def fired(self, key: Key) -> None:
        """The timer is being fired: it is gone unless the node sets it again."""
        del self._armed[key]
        del self._queued[key]
        self._unwatch(key)

    def _unwatch(self, key: Key) -> None:
        if key in self._watched:
            del self._watchers[self._watched.pop(key)][key]

    def expire_now(self, key: Key, now_ms: TimeMs) -> None:
        """Makes a timer due at once, if it is set at all."""
        if key in self._armed or key in self._asleep or key in self._watched:
            self.cancel(key, now_ms)
            self._arm(key, now_ms)

    def forget_node(self, node: NodeId) -> None:
        """The node is gone: none of its timers fires any more. Its pairs must have been disturbed first."""
        for key in [key for key in self._queued if key[0] == node]:
            del self._queued[key]
            if self._armed.pop(key, None) is not None:
                self._unwatch(key)

    def disturb(self, concerns: Callable[[NodeId, NodeId], bool], now_ms: TimeMs) -> list[tuple[TimeMs, Key]]:
        """Ends the sleep of all timers whose pair `concerns` says will not be sound any more.

        Everything that is due now has been done already, so a tick that falls on now has been sent. Returns the ticks
        (time, timer) whose renewal is on its way: the caller fires them, oldest first, with the time of the tick,
        before anything else.
        """
        on_their_way: list[tuple[TimeMs, Key]] = []
        for key, asleep in list(self._asleep.items()):
            if not concerns(key[0], asleep.peer):
                continue
            del self._asleep[key]
            ticks = self._ticks_before(asleep, now_ms + 1)
            last_tick = asleep.due_ms + (ticks - 1) * asleep.period_ms
            if ticks and last_tick + self._latency_ms >= now_ms:
                self._wake_watchers(key, asleep, ticks - 1)
                on_their_way.append((last_tick, key))
            else:
                self._wake_watchers(key, asleep, ticks)
                self._arm(key, asleep.due_ms + ticks * asleep.period_ms)
        return sorted(on_their_way)

    def _arm(self, key: Key, due_ms: TimeMs) -> None:
        self._armed[key] = due_ms
        queued_ms = self._queued.get(key)
        if queued_ms is None or due_ms < queued_ms:
            self._queued[key] = due_ms
            self._push(due_ms, key)

    @staticmethod
    def _ticks_before(asleep: _Asleep, now_ms: TimeMs) -> int:
        """How many ticks the timer would have had strictly before now."""
        if now_ms <= asleep.due_ms:
            return 0
        return -(-(now_ms - asleep.due_ms) // asleep.period_ms)

    def _wake_watchers(self, key: Key, asleep: _Asleep, ticks: int) -> None:
        """Arms the passive timers of an active one that had `ticks` arrivals while they slept."""
        for watcher, watch in self._watchers_of(key, asleep.peer):
            if ticks:
                last_arrival = asleep.due_ms + (ticks - 1) * asleep.period_ms + watch.latency_ms
                watch.due_ms = max(watch.due_ms, last_arrival + watch.period_ms)
            self._arm(watcher, watch.due_ms)
