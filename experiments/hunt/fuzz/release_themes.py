"""Themes about reassignments that are taken back, where releases of Kafka decide differently (`kafka-findings.md`).

A request that replaces another one, and a cancellation, leave a state that the controller must be able to go on from.
Both themes are those of `themes.py` in form.
"""

from __future__ import annotations

from collections.abc import Iterator

from experiments.faults import recipes
from experiments.hunt.fuzz.bias import Bias
from experiments.hunt.fuzz.scene import Episode, Part, Scene
from protocol.config import UNCLEAN_LEADER_ELECTION_ENABLE
from protocol.features import Generation


def _taken_back(scene: Scene) -> Iterator[Part]:
    """A partition moves to brokers of which one is down, and a later request, perhaps repeated, moves it back: brokers
    are added and removed at once. Perhaps the broker is back meanwhile, or a replica of the partition fails.
    """
    moved, kept = scene.elsewhere(*scene.followers), (scene.leader, *scene.followers)
    moves_ms = scene.after(scene.at_ms, 100, 600)
    back_ms = scene.after(moves_ms, 100, 4_000)
    end_ms = scene.after(moves_ms + scene.gone_ms, 3_000, 5_000)
    yield recipes.kill(moved[0], scene.at_ms, end_ms + 500 if scene.perhaps() else back_ms)
    yield scene.reassign(moves_ms, end_ms, moved)
    for _ in range(2):
        moves_ms = scene.after(moves_ms, 100, 1_500)
        yield scene.reassign(moves_ms, end_ms, kept)
    if scene.perhaps(0.4):
        fails_ms = scene.after(scene.at_ms, 100, 2_000)
        yield recipes.kill(scene.rng.choice(kept), fails_ms, scene.after(fails_ms, 50, scene.gone_ms + 500))


def _cancelled_in_absence(scene: Scene) -> Iterator[Part]:
    """All original replicas fail while an adding one is in sync, which leads; the reassignment is cancelled before an
    original one is back, or soon after.
    """
    adding = scene.elsewhere(*scene.followers)
    moves_ms = scene.after(scene.at_ms, 100, 600)
    fails_ms = scene.after(moves_ms, 900, 1_600)
    cancelled_ms = scene.after(fails_ms + scene.gone_ms, 300, 1_500)
    back_ms = scene.after(cancelled_ms, -300, 2_000)
    yield from (recipes.kill(broker, scene.at_ms, back_ms + 3_000) for broker in adding[1:])
    yield scene.reassign(moves_ms, cancelled_ms, adding)
    for broker in (scene.leader, *scene.followers):
        yield recipes.kill(broker, fails_ms, back_ms)
    if scene.perhaps():
        again_ms = scene.after(back_ms, 500, 1_500)
        yield recipes.kill(adding[0], again_ms, scene.after(again_ms, 500, scene.gone_ms + 500))


RELEASE_THEMES: dict[str, tuple[Episode, Bias]] = {
    "taken back": (_taken_back, Bias(brokers=5, replicas=2, partitions=1)),
    "cancelled in absence": (
        _cancelled_in_absence,
        Bias(
            generation=Generation.KIP_966_ELR,
            brokers=5,
            replicas=2,
            min_isr=1,
            partitions=1,
            topic={UNCLEAN_LEADER_ELECTION_ENABLE: True},
        ),
    ),
}
"""By name, as `THEMES`. They take turns in the plans of releases only."""
