"""Themes: short sequences of faults that follow each other closely, with random times and random parts.

Faults that are drawn one by one rarely come in the order to which a protocol is most sensitive: a message is delayed,
a node fails meanwhile, then the message arrives. An *episode* is such a sequence for one partition, with its `leader`,
a follower called `member`, and the `others`. An episode begins with a preferred leader election, so that in most cases
the leader is the one it expects; in the other cases it is one more random sequence. The bias of a theme has the sizes
and configs without which it has no effect.

The last three are about messages that were right when they were sent, and that an epoch has to refuse by now: the epoch
of a producer, of a broker's incarnation or of the controllers' quorum rises while copies of earlier messages are under
way, or while a node goes on in its former epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from experiments.faults import recipes
from experiments.faults.kinds.links import Cut, Effect, MessageKind
from experiments.faults.kinds.machines import FullDisk
from experiments.faults.kinds.processes import Crash, Pause, Restart
from experiments.faults.recipes import CLIENT, CONTROLLER
from experiments.hunt.fuzz.bias import NO_BIAS, Bias
from experiments.hunt.fuzz.scene import Episode, Part, Quiet, RequestedElection, Scene
from protocol.config import (
    BATCH_SIZE,
    BROKER_HEARTBEAT_INTERVAL_MS,
    BROKER_SESSION_TIMEOUT_MS,
    DELIVERY_TIMEOUT_MS,
    ENABLE_IDEMPOTENCE,
    LOG_RETENTION_CHECK_INTERVAL_MS,
    MIN_INSYNC_REPLICAS,
    REPLICA_LAG_TIME_MAX_MS,
    REQUEST_TIMEOUT_MS,
    RETENTION_BYTES,
    SEGMENT_BYTES,
    UNCLEAN_LEADER_HOOK,
    UNCLEAN_RECOVERY_STRATEGY,
    UNCLEAN_RECOVERY_TIMEOUT_MS,
)
from protocol.features import Generation
from protocol.ids import FIRST_CONTROLLER, RECOVERY_MANAGER

RECOVERIES = Bias(
    generation=Generation.KIP_966, replicas=3, min_isr=2, partitions=1, config={UNCLEAN_RECOVERY_TIMEOUT_MS: 2_000}
)
"""Partitions in unclean recovery, with a short recovery timeout."""
MOVES_WITHOUT_LEADER = Bias(
    generation=Generation.KIP_966,
    brokers=5,
    replicas=2,
    min_isr=2,
    partitions=1,
    topic={UNCLEAN_RECOVERY_STRATEGY: "proactive"},
)
"""Partitions that may be reassigned without a leader, and then recovered or led by what was being added."""
_GIVES_UP_MS = 1_200
"""`delivery.timeout.ms` where a producer gives batches up."""
_FORMER_EPOCHS = Bias(
    partitions=1,
    config={ENABLE_IDEMPOTENCE: True, DELIVERY_TIMEOUT_MS: _GIVES_UP_MS, REQUEST_TIMEOUT_MS: 1_000, BATCH_SIZE: 1},
)
"""An idempotent producer that soon gives up, and whose batches have one record each: the sequence numbers of its
successive epochs are the same.
"""
_QUORUM = 3
_QUICK = {REPLICA_LAG_TIME_MAX_MS: 3_000, BROKER_SESSION_TIMEOUT_MS: 1_000, BROKER_HEARTBEAT_INTERVAL_MS: 250}
_SESSION_EFFECTS: Sequence[Effect] = ("lose", "lose", "duplicate", "reorder")
_PRODUCER_EFFECTS: Sequence[Effect] = ("lose", "duplicate", "reorder")
_LATE_EFFECTS: Sequence[Effect] = ("duplicate", "duplicate", "reorder")
_TO_CONTROLLER: Sequence[MessageKind] = ("registrations", "heartbeats", "proposals", "metadata")


def _empty_member(scene: Scene) -> Iterator[Part]:
    """A proposal is delayed while the member that it adds loses its unflushed records and restarts."""
    back_ms = scene.at_ms + scene.away_ms
    yield recipes.lose_fetch_responses(scene.member, scene.brokers, scene.at_ms, back_ms)
    arrives_ms = scene.after(back_ms, 3_000, 5_500)
    yield recipes.lose_proposals(scene.leader, back_ms - 100, arrives_ms)
    fails_ms = scene.after(back_ms, 500, 1_300)
    starts_ms = scene.after(fails_ms, 50, 2_000)
    yield recipes.fail_power(scene.member, fails_ms, starts_ms)
    yield recipes.lose_fetch_responses(scene.member, scene.brokers, starts_ms - 20, scene.after(arrives_ms, 500, 3_000))


def _lost_proposal_response(scene: Scene) -> Iterator[Part]:
    """A leader does not learn the outcome of its proposal while members leave and rejoin."""
    back_ms = scene.at_ms + scene.away_ms
    yield recipes.lose_fetch_responses(scene.member, scene.brokers, scene.at_ms, back_ms)
    end_ms = scene.after(back_ms, 3_000, 5_500)
    if scene.perhaps():
        yield recipes.cut_from_controller(scene.leader, back_ms - 100, end_ms)
    else:
        yield recipes.lose_metadata(scene.leader, back_ms - 100, end_ms)
        yield recipes.lose_proposal_responses(scene.leader, back_ms - 100, scene.after(back_ms, 600, 1_600))
    yield recipes.lose_fetch_responses(scene.member, scene.brokers, scene.after(back_ms, 500, 1_000), end_ms)
    if scene.others and scene.perhaps():
        seen_ms = scene.after(back_ms, 400, 1_200)
        yield recipes.lose_fetch_responses(scene.others[0], scene.brokers, scene.at_ms, seen_ms)


def _raised_min_isr(scene: Scene) -> Iterator[Part]:
    """Min ISR is raised while a smaller ISR is proposed, and the leader receives no metadata."""
    end_ms = scene.after(scene.at_ms + scene.away_ms, 2_500, 4_000)
    for follower in scene.followers if scene.perhaps(0.8) else (scene.member,):
        yield recipes.lose_fetch_responses(follower, scene.brokers, scene.at_ms, end_ms)
    yield recipes.lose_metadata(scene.leader, scene.after(scene.at_ms, 100, 600), end_ms)
    raised_ms, lowered_ms = scene.after(scene.at_ms, 600, scene.away_ms), scene.after(end_ms, 500, 2_000)
    yield scene.configure(raised_ms, lowered_ms, MIN_INSYNC_REPLICAS, scene.min_isr + 1)


def _leadership_returns(scene: Scene) -> Iterator[Part]:
    """Leadership moves away and back while a follower does not receive the metadata."""
    unseen_ms = scene.after(scene.at_ms, 50, 400)
    yield recipes.lose_heartbeats(scene.leader, unseen_ms, unseen_ms + scene.gone_ms)
    back_ms = scene.after(unseen_ms + scene.gone_ms, 1_000, 2_000)
    later_ms = scene.after(back_ms, 1_000, 2_500)
    yield RequestedElection(back_ms)
    yield RequestedElection(later_ms)
    lose = recipes.cut_from_controller if scene.perhaps(0.7) else recipes.lose_metadata
    yield lose(scene.member, scene.at_ms, scene.after(later_ms, 1_000, 4_000))


def _unread_fencing(scene: Scene) -> Iterator[Part]:
    """A fenced follower catches up before its leader reads of the fencing; a refused proposal may arrive again."""
    unseen_ms = scene.at_ms + scene.away_ms
    fenced_ms = unseen_ms + scene.gone_ms
    back_ms = scene.after(fenced_ms, 0, 700)
    seen_ms = scene.after(back_ms, 600, 2_000)
    end_ms = scene.after(seen_ms, 1_500, 4_000)
    yield recipes.lose_fetch_responses(scene.member, scene.brokers, scene.at_ms, back_ms)
    yield recipes.lose_heartbeats(scene.member, unseen_ms, seen_ms)
    if scene.perhaps():
        yield recipes.cut_from_controller(scene.leader, unseen_ms, end_ms)
    else:
        yield recipes.lose_metadata(scene.leader, unseen_ms, end_ms)
        yield recipes.duplicate_proposals(scene.leader, 4_000, back_ms - 100, seen_ms)
        yield recipes.lose_fetch_responses(scene.member, scene.brokers, seen_ms - 100, end_ms)


def _deposed_proposer(scene: Scene) -> Iterator[Part]:
    """A proposal is delayed until another broker leads and the proposer, unaware of that, is unfenced."""
    unseen_ms = scene.after(scene.at_ms + scene.away_ms, -1_000, 200)
    seen_ms = unseen_ms + scene.gone_ms
    yield recipes.lose_fetch_responses(scene.member, scene.brokers, scene.at_ms, scene.after(unseen_ms, 300, 1_200))
    yield recipes.lose_proposals(scene.leader, scene.at_ms, scene.after(seen_ms, 200, 1_000))
    yield recipes.lose_heartbeats(scene.leader, unseen_ms, seen_ms)
    cut_ms, end_ms = scene.after(unseen_ms, 500, 1_500), scene.after(seen_ms, 1_500, 4_000)
    yield recipes.cut_from_controller(scene.leader, cut_ms, end_ms)


def _late_proposals(scene: Scene) -> Iterator[Part]:
    """Proposals arrive late or twice, after newer proposals or during a reassignment."""
    back_ms = scene.at_ms + scene.away_ms
    end_ms = scene.after(back_ms, 4_000, 6_000)
    held_up = recipes.reorder_proposals if scene.perhaps() else recipes.duplicate_proposals
    yield held_up(scene.leader, scene.rng.choice((2_500, 6_000)), back_ms - 100, end_ms)
    yield recipes.lose_fetch_responses(scene.member, scene.brokers, scene.at_ms, back_ms)
    yield recipes.lose_fetch_responses(scene.member, scene.brokers, scene.after(back_ms, 30, 1_000), end_ms)
    if scene.perhaps():
        yield scene.reassign(scene.after(back_ms, 50, 1_000), end_ms + 1_000, scene.elsewhere())


def _power_after_shutdown(scene: Scene) -> Iterator[Part]:
    """The power fails after a clean shutdown, or after the restart that follows it."""
    broker = scene.rng.choice((scene.leader, *scene.followers))
    up_ms = scene.after(scene.at_ms, 1_200, 2_500)
    yield Restart(at_ms=scene.at_ms, duration_ms=up_ms - scene.at_ms, node=broker)
    fails_ms = scene.after(scene.at_ms, 700, 1_200) if scene.perhaps() else scene.after(up_ms, 500, 4_000)
    yield recipes.fail_power(broker, fails_ms, scene.after(fails_ms, 50, 1_500))


def _all_restart(scene: Scene) -> Iterator[Part]:
    """All brokers restart while a producer waits for responses."""
    deaf_ms = scene.after(scene.at_ms, 0, 500)
    fails_ms = scene.after(deaf_ms, 50, 1_200)
    heard_ms, brokers = scene.after(fails_ms, 20, 1_500), tuple(scene.brokers)
    yield Cut(at_ms=deaf_ms, duration_ms=heard_ms - deaf_ms, source=brokers, target=CLIENT, one_way=True)
    yield from (recipes.kill(broker, fails_ms, scene.after(fails_ms, 1, 300)) for broker in scene.brokers)


def _sessions(scene: Scene) -> Iterator[Part]:
    """Single fetch requests and responses of a follower are lost, delayed or duplicated."""
    begin_ms = scene.at_ms
    for _ in range(4):
        end_ms = scene.after(begin_ms, 500, 2_500)
        ends = scene.either_way((scene.member,), scene.other_than(scene.member))
        effect, share = scene.rng.choice(_SESSION_EFFECTS), scene.rng.choice((50, 300))
        late_ms = 0 if effect == "lose" else scene.rng.choice((10, 300, 2_500))
        yield recipes.disturb(*ends, effect, begin_ms, end_ms, per_mille=share, delay_ms=late_ms, only="fetches")
        begin_ms = scene.after(begin_ms, 200, 2_500)


def _unaware_successor(scene: Scene) -> Iterator[Part]:
    """A new leader does not know its predecessor's high watermark, and a follower lacks the records."""
    back_ms = scene.after(scene.at_ms + scene.away_ms, 200, 800)
    taken_ms = scene.after(back_ms, 700, 1_200)
    fails_ms = scene.after(taken_ms, 700, 1_500)
    yield recipes.lose_fetch_responses(scene.member, scene.brokers, scene.at_ms, back_ms)
    yield recipes.lose_proposals(scene.leader, back_ms - 1_000, taken_ms)
    yield recipes.lose_fetch_responses(scene.member, scene.brokers, scene.after(taken_ms, -400, 0), fails_ms + 100)
    end_ms = scene.after(fails_ms + scene.gone_ms, 1_500, 3_000)
    yield recipes.kill(scene.leader, fails_ms, end_ms)
    for other in scene.others:
        yield recipes.lose_fetch_responses(other, scene.brokers, scene.at_ms, end_ms)


def _quick_return(scene: Scene) -> Iterator[Part]:
    """A caught-up follower loses its unflushed records and restarts at once; its leader does not learn of that."""
    back_ms = scene.after(scene.at_ms, 30, 150)
    yield recipes.fail_power(scene.member, scene.at_ms, back_ms)
    end_ms = scene.after(back_ms, 1_500, 4_500)
    yield Quiet(scene.at_ms - 150, scene.after(back_ms + scene.gone_ms, 0, 1_000))
    if scene.perhaps(0.7):
        yield recipes.lose_fetch_requests(scene.member, scene.brokers, scene.at_ms, end_ms)
    else:
        yield recipes.lose_metadata(scene.leader, scene.at_ms - 100, end_ms)


def _slow_routine(scene: Scene) -> Iterator[Part]:
    """All brokers restart, and a leader that was elected uncleanly is fenced during its slow data-loss routine."""
    yield from (recipes.kill(broker, scene.at_ms, scene.after(scene.at_ms, 1, 300)) for broker in scene.brokers)
    unseen_ms = scene.after(scene.at_ms + scene.gone_ms, 500, 2_000)
    for broker in scene.brokers if scene.perhaps() else (scene.leader,):
        yield recipes.lose_heartbeats(broker, unseen_ms, unseen_ms + scene.gone_ms)


def _move_away(scene: Scene) -> Iterator[Part]:
    """A partition moves away from the last members of its ISR."""
    moves_ms = scene.after(scene.at_ms + scene.gone_ms, 200, 1_500)
    end_ms = scene.after(moves_ms, 3_000, 5_000)
    for follower in scene.followers:
        yield recipes.kill(follower, scene.at_ms, end_ms if scene.perhaps(0.8) else moves_ms + 500)
    yield scene.reassign(moves_ms, end_ms + 1_500, scene.elsewhere())


def _cancelled_leader(scene: Scene) -> Iterator[Part]:
    """All original replicas of a partition fail around the begin of a reassignment, which is cancelled when one of them
    is back. In most episodes an adding replica leads meanwhile and fails last, and a user requests an unclean election
    while a recovery waits; in the others no adding replica has anything of the log.
    """
    adding = scene.elsewhere(*scene.followers)
    if scene.perhaps(0.7):
        moves_ms = scene.after(scene.at_ms, 100, 600)
        fails_ms = scene.after(moves_ms, 300, 900)
        leads_ms = fails_ms + scene.gone_ms
        back_ms = scene.after(leads_ms, 700, 900)
        cancelled_ms = scene.after(leads_ms + scene.gone_ms, 500, 1_900)
        yield from (recipes.kill(broker, scene.at_ms, cancelled_ms + 3_000) for broker in adding[1:])
        yield recipes.kill(adding[0], leads_ms, scene.after(cancelled_ms, 50, 400))
        yield RequestedElection(scene.after(cancelled_ms, 800, 2_000), unclean=True)
    else:
        fails_ms = scene.at_ms
        moves_ms = scene.after(fails_ms + scene.gone_ms, 100, 500)
        back_ms = scene.after(moves_ms, 5_300, 6_500)
        cancelled_ms = scene.after(back_ms, 300, 1_200)
    yield recipes.kill(scene.leader, fails_ms, back_ms)
    yield from (recipes.kill(broker, fails_ms, cancelled_ms + 3_000) for broker in scene.followers)
    yield scene.reassign(moves_ms, cancelled_ms, adding)


def _deposed_writer(scene: Scene) -> Iterator[Part]:
    """A leader is deposed with records that no other replica has, and leads again, perhaps unnoticed by clients."""
    end_ms = scene.after(scene.at_ms + scene.gone_ms, 300, 1_500)
    back_ms = scene.after(end_ms, 1_500, 2_500)
    yield recipes.isolate(scene.leader, (*scene.brokers, *CONTROLLER), scene.at_ms, end_ms)
    yield RequestedElection(back_ms)
    yield RequestedElection(scene.after(back_ms, 800, 1_200))
    if scene.perhaps(0.7):
        for follower in scene.followers:
            yield recipes.isolate(follower, CLIENT, scene.at_ms - 100, scene.after(back_ms, 1_500, 3_000))


def _repeated_divergence(scene: Scene) -> Iterator[Part]:
    """A leader is deposed in a quiet time, and its fetch responses as a follower are duplicated."""
    back_ms = scene.after(scene.at_ms + scene.gone_ms, 500, 2_500)
    yield recipes.isolate(scene.leader, (*scene.brokers, *CONTROLLER), scene.at_ms, back_ms)
    yield Quiet(scene.after(scene.at_ms, 50, 600), scene.after(back_ms, 1_000, 3_000))
    end_ms, late_ms = scene.after(back_ms, 1_000, 3_000), scene.rng.choice((500, 2_500))
    others = scene.other_than(scene.leader)
    yield recipes.disturb(others, (scene.leader,), "duplicate", back_ms - 100, end_ms, only="fetches", delay_ms=late_ms)


def _short_segments(scene: Scene) -> Iterator[Part]:
    """Segments are short-lived and followers lag; then the leader crashes."""
    end_ms = scene.after(scene.at_ms, 500, scene.away_ms)
    for follower in scene.followers:
        if scene.perhaps(0.8):
            yield recipes.lose_fetch_responses(follower, scene.brokers, scene.at_ms, scene.after(end_ms, 0, 500))
    yield recipes.kill(scene.leader, end_ms, scene.after(end_ms, 50, scene.gone_ms + 500))


def _producer_trouble(scene: Scene) -> Iterator[Part]:
    """Batches and their responses are lost, delayed or duplicated while leaders change."""
    for _ in range(2):
        ends = scene.either_way(CLIENT, scene.brokers)
        effect, begin_ms = scene.rng.choice(_PRODUCER_EFFECTS), scene.after(scene.at_ms, 0, 1_500)
        end_ms, share = scene.after(begin_ms, 500, 3_000), scene.rng.choice((100, 300, 1_000))
        late_ms = 0 if effect == "lose" else scene.rng.choice((50, 1_000))
        yield recipes.disturb(*ends, effect, begin_ms, end_ms, per_mille=share, delay_ms=late_ms, only="produce")
    fails_ms = scene.after(scene.at_ms, 300, 2_000)
    yield Restart(at_ms=fails_ms, duration_ms=scene.rng.randint(300, 1_500), node=scene.leader)
    yield RequestedElection(scene.after(fails_ms, 2_000, 3_000))


def _full_disks(scene: Scene) -> Iterator[Part]:
    """Disks become full one after the other during writes."""
    for broker in (scene.leader, *scene.followers):
        if broker == scene.leader or scene.perhaps():
            begins_ms = scene.after(scene.at_ms, 0, 3_000)
            yield FullDisk(at_ms=begins_ms, duration_ms=scene.rng.randint(300, 3_000), node=broker)


def _handovers(scene: Scene) -> Iterator[Part]:
    """Leaders change several times while records are in flight."""
    begin_ms = scene.at_ms
    for _ in range(3):
        broker = scene.rng.choice((scene.leader, scene.leader, *scene.followers))
        kind = scene.rng.randrange(3)
        if kind == 0:
            yield Restart(at_ms=begin_ms, duration_ms=scene.rng.randint(100, 1_000), node=broker)
        elif kind == 1:
            yield recipes.lose_heartbeats(broker, begin_ms, begin_ms + scene.gone_ms)
        else:
            yield Pause(at_ms=begin_ms, duration_ms=scene.rng.randint(100, scene.gone_ms), node=broker)
        begin_ms = scene.after(begin_ms, 700, scene.gone_ms)
        yield RequestedElection(begin_ms)
        begin_ms += scene.rng.randint(50, 500)


def _controller_gone(scene: Scene) -> Iterator[Part]:
    """The controller's machine fails near a broker's failure."""
    broker = scene.rng.choice((scene.leader, *scene.followers))
    fails_ms = scene.after(scene.at_ms, 0, 800)
    yield recipes.fail_power(broker, fails_ms, scene.after(fails_ms, 50, scene.gone_ms))
    down_ms = scene.after(scene.at_ms, 0, 3_000)
    yield recipes.fail_power(CONTROLLER[0], down_ms, scene.after(down_ms, 20, 2_000))


def _missing_candidate(scene: Scene) -> Iterator[Part]:
    """All replicas restart, one of them before the others; the response of a required replica is lost while another
    one, which has responded, restarts; the recovery manager or the controller may fail meanwhile.
    """
    rest_ms = scene.after(scene.at_ms + scene.gone_ms, 0, 500)
    back_ms = scene.after(rest_ms, 100, scene.gone_ms)
    yield recipes.kill(scene.member, scene.at_ms, back_ms)
    for broker in (scene.leader, *scene.others):
        yield recipes.kill(broker, rest_ms, scene.after(back_ms, 100, 500))
    asked_ms = max(back_ms, rest_ms + scene.gone_ms)
    heard_ms = scene.after(asked_ms, 3_500, 6_000)
    if scene.perhaps(0.2):
        strategy = scene.rng.choice(("manual", "proactive"))
        yield scene.configure(scene.at_ms, heard_ms, UNCLEAN_RECOVERY_STRATEGY, strategy)
    if scene.recovers and scene.perhaps(0.6):
        silent = scene.rng.choice((scene.leader, *scene.others))
        lasts_ms = heard_ms - rest_ms
        yield Cut(at_ms=rest_ms, duration_ms=lasts_ms, source=(silent,), target=(RECOVERY_MANAGER,), one_way=True)
        if scene.perhaps(0.7):
            again_ms = scene.after(asked_ms, 600, 1_500)
            yield recipes.kill(scene.member, again_ms, scene.after(again_ms, 50, 400))
        if scene.perhaps(0.4):
            down_ms = scene.after(asked_ms, 700, 2_500)
            yield recipes.kill(CONTROLLER[0], down_ms, scene.after(down_ms, 50, 500))
    elif scene.recovers:
        yield recipes.kill(RECOVERY_MANAGER, rest_ms, heard_ms)


def _late_metadata(scene: Scene) -> Iterator[Part]:
    """No ISR member is left, and the only candidate learns late that there is no leader, or responds late."""
    fails_ms = scene.at_ms + scene.away_ms
    back_ms = scene.after(fails_ms + scene.gone_ms, 1_500, 3_000)
    end_ms = scene.after(back_ms, 3_000, 4_500)
    yield scene.configure(scene.at_ms, end_ms, UNCLEAN_RECOVERY_STRATEGY, "proactive")
    yield recipes.lose_fetch_responses(scene.member, scene.brokers, scene.at_ms, end_ms)
    for other in scene.others:
        yield recipes.kill(other, fails_ms, end_ms)
    late_ms = scene.rng.choice((400, 1_000))
    yield recipes.disturb(CONTROLLER, (scene.member,), "delay", fails_ms, back_ms, delay_ms=late_ms, only="metadata")
    yield Restart(at_ms=fails_ms, duration_ms=back_ms - fails_ms, node=scene.leader)
    if scene.recovers and scene.perhaps():
        ends, late_ms = ((scene.member,), (RECOVERY_MANAGER,)), scene.rng.choice((3_000, 4_000))
        yield recipes.disturb(*ends, "delay", fails_ms, end_ms, delay_ms=late_ms, only="recoveries")


def _longer_log(scene: Scene) -> Iterator[Part]:
    """A leader that is cut off goes on appending; the next one appends little, loses some of it, and fails."""
    back_ms = scene.after(scene.at_ms + 2 * scene.gone_ms, 1_000, 2_000)
    leads_ms = scene.at_ms + scene.gone_ms
    fails_ms = scene.after(leads_ms, 100, 700)
    yield recipes.isolate(scene.leader, (*scene.brokers, *CONTROLLER), scene.at_ms, back_ms)
    cut_ms = leads_ms - scene.rng.randint(400, 1_100)
    for other in scene.others:
        yield recipes.isolate(scene.member, (other,), cut_ms, fails_ms + 100)
        yield recipes.kill(other, fails_ms, scene.after(back_ms, 100, 800))
    yield Crash(at_ms=fails_ms, duration_ms=back_ms - fails_ms, node=scene.member, loses="records", count=20)


def _former_producer_epochs(scene: Scene) -> Iterator[Part]:
    """A producer gives batches up and goes on in its next epoch, while copies of earlier batches arrive."""
    end_ms = scene.at_ms
    for _ in range(3):
        begin_ms = scene.after(end_ms, 400, 1_000)
        end_ms = scene.after(begin_ms, _GIVES_UP_MS, _GIVES_UP_MS + 600)
        target, source = scene.either_way(CLIENT, scene.brokers, 0.3)
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
        ends = scene.either_way((broker,), peers)
        effect, delay_ms = scene.rng.choice(_LATE_EFFECTS), scene.rng.choice((300, 1_000, 2_500))
        yield recipes.disturb(*ends, effect, scene.at_ms, end_ms, only=kind, delay_ms=delay_ms)


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


THEMES: dict[str, tuple[Episode, Bias]] = {
    "empty member": (_empty_member, Bias(replicas=3, min_isr=2)),
    "lost proposal response": (_lost_proposal_response, NO_BIAS),
    "missing candidate": (_missing_candidate, RECOVERIES),
    "late metadata": (_late_metadata, replace(RECOVERIES, config={UNCLEAN_RECOVERY_TIMEOUT_MS: 200})),
    "longer log": (_longer_log, RECOVERIES),
    "raised min ISR": (_raised_min_isr, Bias(min_isr=1)),
    "leadership returns": (_leadership_returns, NO_BIAS),
    "unread fencing": (_unread_fencing, NO_BIAS),
    "deposed proposer": (_deposed_proposer, NO_BIAS),
    "late proposals": (_late_proposals, Bias(brokers=4)),
    "power after shutdown": (_power_after_shutdown, Bias(replicas=3, min_isr=3)),
    "all restart": (_all_restart, NO_BIAS),
    "sessions": (_sessions, Bias(partitions=5)),
    "unaware successor": (_unaware_successor, Bias(replicas=3)),
    "quick return": (_quick_return, Bias(replicas=3, min_isr=2, config=_QUICK)),
    "slow routine": (_slow_routine, Bias(config={UNCLEAN_LEADER_HOOK: "experiments.scenarios.hooks:wait_10s"})),
    "move away": (_move_away, Bias(brokers=4)),
    "deposed writer": (_deposed_writer, NO_BIAS),
    "repeated divergence": (_repeated_divergence, NO_BIAS),
    "short segments": (
        _short_segments,
        Bias(topic={SEGMENT_BYTES: 200, RETENTION_BYTES: 500}, config={LOG_RETENTION_CHECK_INTERVAL_MS: 200}),
    ),
    "producer trouble": (_producer_trouble, NO_BIAS),
    "full disks": (_full_disks, NO_BIAS),
    "handovers": (_handovers, NO_BIAS),
    "controller gone": (_controller_gone, NO_BIAS),
    "cancelled leader": (_cancelled_leader, MOVES_WITHOUT_LEADER),
    "former producer epochs": (_former_producer_epochs, _FORMER_EPOCHS),
    "former incarnations": (_former_incarnations, NO_BIAS),
    "divided quorum": (_divided_quorum, Bias(controllers=_QUORUM)),
}
"""By name: the episode, and the bias that it needs. The order decides which themes a seed gets."""
