"""Themes of generation `v3`, as those of `themes.py`, around the store, the sessions of brokers, and the elected
controller.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from experiments.faults import recipes
from experiments.faults.kinds.links import Cut, Effect
from experiments.faults.kinds.processes import Bump, Crash, Expire, Pause, Restart
from experiments.hunt.fuzz.bias import NO_BIAS, Bias
from experiments.hunt.fuzz.scene import Episode, Part, RequestedElection, Scene
from protocol.ids import STORE

_STORE = (STORE,)
_EFFECTS: Sequence[Effect] = ("lose", "duplicate", "reorder", "delay")
_STORE_EFFECTS: Sequence[Effect] = ("lose", "duplicate", "delay")
_WRITERS: Sequence[Literal["leader", "controller"]] = ("controller", "controller", "leader")
_LOSSES: Sequence[Literal["unflushed", "nothing"]] = ("unflushed", "nothing")


def _expired_leader(scene: Scene) -> Iterator[Part]:
    """The session of a leader expires while it lives, and a follower leaves and joins the ISR around it (A52, M39)."""
    back_ms = scene.at_ms + scene.away_ms
    yield recipes.lose_fetch_responses(scene.member, scene.brokers, scene.at_ms, back_ms)
    for at_ms in (scene.at_ms + scene.away_ms * 2 // 3, scene.after(back_ms, 0, 400)):
        yield Expire(at_ms=scene.after(at_ms, 0, 300), duration_ms=1, node=scene.leader)
    if scene.perhaps():
        yield RequestedElection(scene.after(back_ms, 800, 2_000))


def _evicted_successor(scene: Scene) -> Iterator[Part]:
    """A leader that commands do not reach wants to evict its successor from the ISR (M30)."""
    fails_ms = scene.after(scene.at_ms, 100, 500)
    end_ms = fails_ms + scene.gone_ms + scene.away_ms
    for broker in scene.other_than(scene.leader):
        yield recipes.disturb((broker,), (scene.leader,), "lose", fails_ms, end_ms, only="commands")
    yield Expire(at_ms=scene.after(fails_ms, 0, 500), duration_ms=1, node=scene.leader)
    yield recipes.lose_fetch_responses(scene.member, (scene.leader,), fails_ms, end_ms)


def _deposed_controller(scene: Scene) -> Iterator[Part]:
    """Every broker in turn is cut from the store or paused, with commands and writes on their way (A35, M34)."""
    at_ms = scene.at_ms
    for broker in scene.rng.sample(list(scene.brokers), len(scene.brokers)):
        end_ms = at_ms + scene.gone_ms
        fault = scene.rng.randrange(3)
        if fault == 0:
            yield Pause(at_ms=at_ms, duration_ms=scene.gone_ms, node=broker)
        elif fault == 1:
            yield Cut(at_ms=at_ms, duration_ms=scene.gone_ms, source=(broker,), target=_STORE, one_way=scene.perhaps())
        else:
            yield Expire(at_ms=at_ms, duration_ms=1, node=broker)
        if scene.perhaps():
            yield RequestedElection(scene.after(at_ms, 50, 800))
        at_ms = scene.after(at_ms, 200, 1_000) if fault == 2 else scene.after(end_ms, 0, 800)


def _late_commands(scene: Scene) -> Iterator[Part]:
    """Commands are lost, twice or late while leaderships move (A25, M35)."""
    end_ms = scene.at_ms + 3 * scene.gone_ms
    effect = scene.rng.choice(_EFFECTS)
    delay_ms = 0 if effect == "lose" else scene.rng.choice((300, 1_500, 4_000))
    for broker in scene.brokers:
        ends = (broker,), scene.other_than(broker)
        yield recipes.disturb(*ends, effect, scene.at_ms, end_ms, per_mille=500, delay_ms=delay_ms, only="commands")
    yield recipes.kill(scene.leader, scene.after(scene.at_ms, 100, 500), scene.after(scene.at_ms, 800, 1_500))
    yield RequestedElection(scene.after(scene.at_ms + scene.gone_ms, 500, 1_500))
    yield Expire(at_ms=scene.after(scene.at_ms + scene.gone_ms, 1_500, 2_500), duration_ms=1, node=scene.member)


def _store_outage(scene: Scene) -> Iterator[Part]:
    """The store is away while a follower leaves the ISR, or a broker fails."""
    end_ms = scene.after(scene.at_ms, 300, 4_000)
    fault = scene.rng.randrange(3)
    if fault == 0:
        yield Pause(at_ms=scene.at_ms, duration_ms=end_ms - scene.at_ms, node=STORE)
    else:
        yield Crash(at_ms=scene.at_ms, duration_ms=end_ms - scene.at_ms, node=STORE, loses=_LOSSES[fault - 1])
    if scene.perhaps():
        yield recipes.kill(scene.leader, scene.after(scene.at_ms, 0, 300), scene.after(end_ms, 0, 2_500))
    else:
        yield recipes.lose_fetch_responses(scene.member, scene.brokers, scene.at_ms, scene.at_ms + scene.away_ms)


def _store_link(scene: Scene) -> Iterator[Part]:
    """Requests to the store, responses and watch events are lost, late or twice, so that writes are repeated."""
    end_ms = scene.at_ms + scene.away_ms + scene.gone_ms
    effect = scene.rng.choice(_STORE_EFFECTS)
    delay_ms = 0 if effect == "lose" else scene.rng.choice((50, 500, 1_500))
    ends, share = scene.either_way(scene.brokers, _STORE), scene.rng.choice((50, 200))
    yield recipes.disturb(*ends, effect, scene.at_ms, end_ms, per_mille=share, delay_ms=delay_ms, only="store")
    yield recipes.lose_fetch_responses(scene.member, scene.brokers, scene.at_ms, scene.at_ms + scene.away_ms)
    if scene.perhaps():
        yield recipes.kill(scene.leader, scene.after(scene.at_ms, 500, 1_500), scene.after(end_ms, 0, 500))


def _rolling(scene: Scene) -> Iterator[Part]:
    """Brokers restart in good order, one soon after the other (B3)."""
    at_ms = scene.at_ms
    for broker in scene.brokers:
        yield Restart(at_ms=at_ms, duration_ms=scene.rng.choice((300, 1_500, 2_500)), node=broker)
        at_ms = scene.after(at_ms, 300, 2_500)


def _rolling_bump(scene: Scene) -> Iterator[Part]:
    """Brokers restart one after the other with another inter-broker protocol, all of them or some, while a follower
    leaves the ISR and joins it and leaderships move: leaders write ISRs in both ways (K12, K13).
    """
    at_ms, isr_updates = scene.at_ms, scene.rng.choice(_WRITERS)
    for broker in scene.rng.sample(list(scene.brokers), scene.rng.randint(1, len(scene.brokers))):
        yield Bump(at_ms=at_ms, duration_ms=scene.rng.choice((300, 1_500, 2_500)), node=broker, isr_updates=isr_updates)
        if scene.perhaps():
            yield recipes.lose_fetch_responses(scene.member, scene.brokers, at_ms, at_ms + scene.away_ms)
        if scene.perhaps(0.3):
            yield Expire(at_ms=scene.after(at_ms, 0, 2_000), duration_ms=1, node=scene.rng.choice(scene.brokers))
        if scene.perhaps():
            yield RequestedElection(scene.after(at_ms, 1_500, 3_000))
        at_ms = scene.after(at_ms, 500, 3_000)


def _surviving_sessions(scene: Scene) -> Iterator[Part]:
    """A controller loses the session that makes it one, and its other sessions carry its writes on (A35)."""
    at_ms = scene.at_ms
    for broker in scene.brokers:
        yield Expire(at_ms=at_ms, duration_ms=1, node=scene.leader)
        for _ in range(2):
            yield RequestedElection(scene.after(at_ms, 0, 60))
        yield Expire(at_ms=scene.after(at_ms, 20, 120), duration_ms=1, node=broker, owning_only=True)
        at_ms = scene.after(at_ms, 300, 900)


def _late_init(scene: Scene) -> Iterator[Part]:
    """Controllers change, and their commands are late, while the leader writes its ISR (A25, A46)."""
    back_ms = scene.at_ms + scene.away_ms
    end_ms = back_ms + scene.gone_ms
    yield recipes.lose_fetch_responses(scene.member, scene.brokers, scene.at_ms, back_ms)
    others, delay_ms = scene.other_than(scene.leader), scene.rng.choice((300, 1_000))
    ends = others, (scene.leader,)
    yield recipes.disturb(*ends, "delay", scene.at_ms, end_ms, only="commands", delay_ms=delay_ms, per_mille=700)
    for wrote_ms in (scene.at_ms + scene.away_ms * 2 // 3, back_ms):
        for broker in others:
            yield Expire(at_ms=scene.after(wrote_ms, 0, 400), duration_ms=1, node=broker)


def _moved_partition(scene: Scene) -> Iterator[Part]:
    """A partition moves, and again before it has arrived, while brokers and the controller fail (A37-A41, M44)."""
    at_ms, size = scene.at_ms, 1 + len(scene.followers)
    for _ in range(scene.rng.choice((1, 1, 2))):
        end_ms = at_ms + scene.rng.choice((800, 4_000, 9_000))
        yield scene.reassign(at_ms, end_ms, scene.rng.sample(list(scene.brokers), size))
        at_ms = scene.after(at_ms, 20, 900)
    for broker in scene.rng.sample(list(scene.brokers), scene.rng.randint(0, 2)):
        fails_ms = scene.after(scene.at_ms, 0, 700)
        if scene.perhaps():
            yield Expire(at_ms=fails_ms, duration_ms=1, node=broker)
        else:
            yield recipes.kill(broker, fails_ms, fails_ms + scene.rng.choice((500, scene.gone_ms)))
    if scene.perhaps(0.3):
        slow = scene.rng.choice(scene.brokers)
        yield recipes.lose_fetch_responses(slow, scene.brokers, scene.at_ms, scene.at_ms + scene.away_ms)


STORE_THEMES: dict[str, tuple[Episode, Bias]] = {
    "expired leader": (_expired_leader, Bias(replicas=3)),
    "evicted successor": (_evicted_successor, Bias(replicas=3)),
    "deposed controller": (_deposed_controller, NO_BIAS),
    "late commands": (_late_commands, NO_BIAS),
    "store outage": (_store_outage, NO_BIAS),
    "store link": (_store_link, NO_BIAS),
    "rolling restart": (_rolling, NO_BIAS),
    "rolling bump": (_rolling_bump, NO_BIAS),
    "surviving sessions": (_surviving_sessions, Bias(sessions=3)),
    "late init": (_late_init, Bias(replicas=3)),
    "moved partition": (_moved_partition, Bias(brokers=4)),
}
"""By name, as `THEMES`."""
