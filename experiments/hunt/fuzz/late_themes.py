"""Themes of what arrives late: messages that were right when they were sent, and that an epoch has to refuse by now.

A guard of this kind has an effect only if its epoch has risen while something was on its way. So these episodes make
the epoch rise, of a producer, of a broker's incarnation or of the controllers' quorum, while copies of earlier messages
are under way, or while a node goes on in its former epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from experiments.faults import recipes
from experiments.faults.kinds.links import Effect, MessageKind
from experiments.faults.recipes import CLIENT, CONTROLLER
from experiments.hunt.fuzz.bias import NO_BIAS, Bias
from experiments.hunt.fuzz.scene import Episode, Part, Quiet, RequestedElection, Scene
from protocol.config import BATCH_SIZE, DELIVERY_TIMEOUT_MS, ENABLE_IDEMPOTENCE, REQUEST_TIMEOUT_MS
from protocol.ids import FIRST_CONTROLLER, NodeId

_QUORUM = 3
_GIVES_UP_MS = 1_200
"""`delivery.timeout.ms` where a producer gives batches up."""
_FORMER_EPOCHS = Bias(
    partitions=1,
    config={
        ENABLE_IDEMPOTENCE: True,
        DELIVERY_TIMEOUT_MS: _GIVES_UP_MS,
        REQUEST_TIMEOUT_MS: 1_000,
        BATCH_SIZE: 1,
    },
)
"""An idempotent producer that soon gives up, and whose batches have one record each: the sequence numbers of its
successive epochs are the same.
"""
_LATE: Sequence[Effect] = ("duplicate", "duplicate", "reorder")
_TO_CONTROLLER: Sequence[MessageKind] = ("registrations", "heartbeats", "proposals", "metadata")


def _former_producer_epochs(scene: Scene) -> Iterator[Part]:
    """A producer gives batches up several times and continues with its next epoch, while copies of earlier batches
    arrive.
    """
    end_ms = scene.at_ms
    for _ in range(3):
        begin_ms = scene.after(end_ms, 400, 1_000)
        end_ms = scene.after(begin_ms, _GIVES_UP_MS, _GIVES_UP_MS + 600)
        ends: Sequence[Sequence[NodeId]] = (CLIENT, scene.brokers)
        source, target = ends[::-1] if scene.perhaps(0.3) else ends
        yield recipes.disturb(source, target, "lose", begin_ms, end_ms, only="produce")
        yield Quiet(scene.after(begin_ms, 100, 400), end_ms)
    late_ms = 2 * _GIVES_UP_MS
    yield recipes.disturb(CLIENT, scene.brokers, "duplicate", scene.at_ms, end_ms, only="produce", delay_ms=late_ms)


def _former_incarnations(scene: Scene) -> Iterator[Part]:
    """A broker restarts twice, while messages of its former incarnations, or the responses to them, arrive late."""
    broker = scene.rng.choice((scene.leader, scene.member))
    others = scene.other_than(broker)
    end_ms = scene.at_ms
    for _ in range(2):
        fails_ms = scene.after(end_ms, 300, 1_500)
        end_ms = scene.after(fails_ms, 30, 400)
        fails = recipes.kill if scene.perhaps() else recipes.fail_power
        yield fails(broker, fails_ms, end_ms)
    end_ms = scene.after(end_ms, 500, 1_500)
    late: list[tuple[MessageKind, Sequence[int]]] = [(kind, CONTROLLER) for kind in _TO_CONTROLLER]
    for kind, peers in scene.rng.sample([*late, ("fetches", others)], 3):
        source, target = ((broker,), peers) if scene.perhaps() else (peers, (broker,))
        effect, delay_ms = scene.rng.choice(_LATE), scene.rng.choice((300, 1_000, 2_500))
        yield recipes.disturb(source, target, effect, scene.at_ms, end_ms, only=kind, delay_ms=delay_ms)


def _divided_quorum(scene: Scene) -> Iterator[Part]:
    """Single controllers are cut off from the others, while brokers still reach them, or fail; meanwhile leaders of
    partitions change, so that there is something to append in both epochs of the quorum.
    """
    controllers = tuple(range(FIRST_CONTROLLER, FIRST_CONTROLLER + _QUORUM))
    begin_ms = scene.at_ms
    for _ in range(3):
        one = scene.rng.choice(controllers)
        end_ms = scene.after(begin_ms, 700, 3_500)
        if scene.perhaps(0.7):
            yield recipes.isolate(one, controllers, begin_ms, end_ms)
        else:
            yield recipes.fail_power(one, begin_ms, end_ms)
        broker = scene.rng.choice((scene.leader, scene.member))
        fails_ms = scene.after(begin_ms, 0, 600)
        yield recipes.kill(broker, fails_ms, scene.after(fails_ms, 30, 800))
        yield RequestedElection(scene.after(fails_ms, 800, 2_000))
        begin_ms = scene.after(end_ms, 100, 1_500)


LATE_THEMES: dict[str, tuple[Episode, Bias]] = {
    "former producer epochs": (_former_producer_epochs, _FORMER_EPOCHS),
    "former incarnations": (_former_incarnations, NO_BIAS),
    "divided quorum": (_divided_quorum, Bias(controllers=_QUORUM)),
}
"""By name: the episode, and the bias that it needs."""
