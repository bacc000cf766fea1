"""The swarm: a plan for every seed.

Each seed draws its own sizes, configs (`draws.yaml`) and kinds of faults, most of them left out: what a kind of fault
hides, when it is common, shows where it is missing (swarm testing). Three plans in four are *staged*: episodes of two
themes (`themes.py`) follow each other, in some plans with single faults among them. The themes take turns with the
seed. The other plans are faults one by one: half of them *brisk*, with short sessions and patience, many operations,
and faults that follow each other within a session, so that a leader is deposed with something on its way; the others
*steady*, with the times of a cluster in service. One default plan in 16 is of `v3`, in any of these forms.

One default seed in eight, and a third of those of `v3`, is *operated*: up to three topics, each with a min ISR of its
own, that the operations of the clients are spread over; racks; in four of five plans an authorizer (`v3` has neither).
Two timelines run beside each other, one of operations (`Fault.is_operation`) and one of faults of all other kinds, so
that each operation meets each fault in a few dozen plans. `coverage.py` counts which have met.

The plans of a release of Kafka (`draw` with a `release`) are of the generations that releases have, and the themes of
`release_themes.py` take turns with the others. Their release and generation are drawn apart. All other plans are of the
newest release and have none of these themes: a seed keeps the plan that it had before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, reduce
from itertools import cycle
from random import Random
from typing import Annotated, Any

from experiments.faults import recipes
from experiments.faults.controls import OPERATOR
from experiments.faults.draw import Rates, timeline
from experiments.faults.kinds import FAULT_KINDS
from experiments.faults.kinds.links import Effect
from experiments.faults.schema import Fault
from experiments.faults.targets import Targets
from experiments.hunt.fuzz.bias import NO_BIAS, Bias
from experiments.hunt.fuzz.plan import Elect, Operation, Plan, Read, Send
from experiments.hunt.fuzz.release_themes import RELEASE_THEMES
from experiments.hunt.fuzz.run import BEGIN_MS
from experiments.hunt.fuzz.scene import Episode, Part, Quiet, RequestedElection, Scene
from experiments.hunt.fuzz.themes import THEMES
from experiments.hunt.fuzz.v3_themes import STORE_THEMES
from experiments.scenarios.model import TopicModel
from experiments.support.declared import declared
from experiments.support.fields import AsTuple, ConfigSetting, StrictModel
from protocol.config import (
    ALLOW_EVERYONE_IF_NO_ACL_FOUND,
    AUTHORIZER_CLASS_NAME,
    BROKER_HEARTBEAT_INTERVAL_MS,
    BROKER_SESSION_TIMEOUT_MS,
    CONTROLLER_QUORUM_VOTERS,
    DELIVERY_TIMEOUT_MS,
    ENABLE_IDEMPOTENCE,
    FLUSH_MESSAGES,
    FLUSH_MS,
    ISR_UPDATES,
    LOG_RETENTION_CHECK_INTERVAL_MS,
    METADATA_RETENTION_BYTES,
    METADATA_SNAPSHOT_BYTES,
    MIN_INSYNC_REPLICAS,
    REPLICA_LAG_TIME_MAX_MS,
    REQUEST_TIMEOUT_MS,
    RETENTION_BYTES,
    SEGMENT_BYTES,
    SUPER_USERS,
    UNCLEAN_LEADER_ELECTION_ENABLE,
    UNCLEAN_RECOVERY_STRATEGY,
)
from protocol.features import RELEASED, Generation
from protocol.ids import FIRST_CLIENT, FIRST_CONTROLLER, RECOVERY_MANAGER, STORE
from protocol.kafka_release import KafkaRelease
from protocol.v3.store.settings import Latency, StoreSettings

TOPIC = "t"
ANY_RELEASE = "any"
READERS = 2
V3_ONE_IN, V3_REMAINDER = 16, 12
"""Default seeds with this remainder are of `v3`."""
FLUSHING, FLUSHING_STAGED = 4, 10
OPERATED_ONE_IN = 8
_FURTHER_TOPICS = ("u", "w")
_BROKERS = (3, 4, 5, 6, 7, 9)
_BETWEEN_FAULTS_MS = (250, 700, 2_000)
_FAULTS_LAST_MS = (30, 300, 1_000, 2_500, 5_000)
_BETWEEN_OPERATIONS_MS = (500, 1_000, 2_000)
_OPERATIONS_LAST_MS = (20, 500, 2_000, 5_000)
_SETTLING_MS = 2_500
_LATE: tuple[Effect, ...] = ("reorder", "duplicate")
_GIVES_UP_MS = 5_000
"""`delivery.timeout.ms` where batches arrive late."""

_Choices = Annotated[tuple[int, ...], AsTuple]


class _Tempo(StrictModel):
    """Times in ms to draw from: the length of the load, the part at its end in which no fault begins, the mean times
    between operations and between faults, durations of faults, session timeouts with heartbeat intervals, and the
    timeouts of leaders and clients (`patience`).
    """

    lengths: _Choices
    settling: int
    operations: _Choices
    faults: _Choices
    durations: _Choices
    sessions: Annotated[tuple[_Choices, ...], AsTuple]
    patience: dict[str, _Choices]


class _Draws(StrictModel):
    """What `draws.yaml` holds."""

    configs: dict[str, _Choices]
    elections: dict[str, _Choices]
    brisk: _Tempo
    staged: _Tempo
    steady: _Tempo


_DRAWS = declared(_Draws, __file__, "draws.yaml")


def draw(seed: int, generation: Generation | None = None, bias: Bias = NO_BIAS, release: str | None = None) -> Plan:
    """The plan of a seed; what neither the generation nor the bias fixes is drawn. `release`: the name of a release of
    Kafka, which the generation must have, or `any` for one that is drawn.
    """
    if bias != NO_BIAS:
        return _draw(seed, generation, bias)
    if release is not None:
        return _released(seed, generation, release)
    becomes_operated = is_operated(seed)
    if generation is None and seed % V3_ONE_IN == V3_REMAINDER:  # in turn operated, with single faults, and staged
        generation, turn = Generation.V3, seed // V3_ONE_IN % 3
        becomes_operated, bias = turn == 0, Bias(themes=()) if turn == 1 else NO_BIAS
    return operated(_draw(seed, generation, sizes(seed))) if becomes_operated else _draw(seed, generation, bias)


def _released(seed: int, generation: Generation | None, release: str) -> Plan:
    rng = Random(f"{seed}/release")
    drawn, named = rng.choice(RELEASED), rng.choice(list(KafkaRelease)).value
    born = generation or drawn
    turns = (*THEMES, *RELEASE_THEMES)
    plan = operated(_draw(seed, born, sizes(seed))) if is_operated(seed) else _draw(seed, born, NO_BIAS, turns)
    return plan.model_copy(update={"kafka_release": named if release == ANY_RELEASE else release})


def _draw(seed: int, generation: Generation | None, bias: Bias, turns: Iterable[str] = THEMES) -> Plan:
    """`turns`: the themes that take turns in plans with a metadata log."""
    rng = Random(f"{seed}/swarm")
    drawn = rng.choice((Generation.KIP_497, Generation.KIP_966_ELR, Generation.KIP_966, Generation.KIP_966))
    has_store = (generation or bias.generation) is Generation.V3
    known = STORE_THEMES if has_store else THEMES | RELEASE_THEMES
    themes = themes_of(seed, bias, tuple(known if has_store else turns))
    tempo = _DRAWS.staged if themes else rng.choice((_DRAWS.brisk, _DRAWS.steady))
    wanted = reduce(Bias.or_else, (known[name][1] for name in themes), bias)
    born = generation or wanted.generation or drawn
    has_store = born.features.metadata_in_store
    brokers = wanted.brokers or rng.choice((3, 3, 4, 5))
    factor = wanted.replicas or (rng.choice((2, 3, 3, 3)) if brokers < 5 else rng.choice((3, 3, 4, 5)))
    topic = _topic(rng, brokers, factor, FLUSHING_STAGED if themes else FLUSHING, wanted)
    controllers, voters, quorum = _quorum(Random(f"{seed}/quorum"), bias, wanted.controllers)
    store, isr_updates = _store(Random(f"{seed}/store"), tempo, wanted) if has_store else (None, {})
    config = _config(rng, tempo) | (isr_updates if has_store else quorum) | dict(wanted.config)
    length_ms = rng.choice(tempo.lengths)
    operations = _operations(rng, tempo, len(topic.assignments), length_ms)
    targets = Targets(
        brokers=range(brokers),
        controllers=range(FIRST_CONTROLLER, FIRST_CONTROLLER + (0 if has_store else controllers)),
        clients=(FIRST_CLIENT,),
        topics={TOPIC: len(topic.assignments)},
        replication_factor=factor,
        managers=(RECOVERY_MANAGER,) if born.features.unclean_recovery else (),
        stores=(STORE,) if has_store else (),
    )
    singles = () if themes and rng.random() < 0.6 else _faults(rng, tempo, targets, length_ms, wanted)
    scene_at = partial(_scene, rng, targets, topic, config)
    staged = _episodes([known[name][0] for name in themes], scene_at, rng, length_ms) if themes else []
    return Plan(
        seed=seed,
        brokers=brokers,
        controllers=1 if has_store else controllers,
        voters=() if has_store else voters,
        store=store,
        generation=born.value,
        config=config,
        jitter_ms=rng.choice((0, 2, 20)),
        within_tolerance=wanted.within_tolerance,
        topics=(topic,),
        operations=_as_staged(operations, staged),
        faults=singles + tuple(part for _, part in staged if not isinstance(part, RequestedElection | Quiet)),
    )


def _quorum(rng: Random, bias: Bias, wanted: int | None) -> tuple[int, tuple[int, ...], dict[str, ConfigSetting]]:
    """The number of controllers, the first voters (none: all), and configs; one controller where a bias is given."""
    controllers = wanted or (rng.choice((1, 1, 1, 1, 1, 1, 3, 3, 5)) if bias == NO_BIAS else 1)
    snapshot_bytes = rng.choice((400, 2_000, 20_971_520, 20_971_520))
    config: dict[str, ConfigSetting] = {METADATA_SNAPSHOT_BYTES: snapshot_bytes, METADATA_RETENTION_BYTES: 0}
    ids = tuple(range(FIRST_CONTROLLER, FIRST_CONTROLLER + controllers))
    if controllers == 1:
        return 1, (), config
    config |= {name: rng.choice(values) for name, values in _DRAWS.elections.items()}
    form = rng.randrange(5)
    if form == 0:
        return controllers, (), config | {CONTROLLER_QUORUM_VOTERS: ",".join(map(str, ids))}
    return controllers, ids[:1] if form == 1 else (), config


def _store(rng: Random, tempo: _Tempo, wanted: Bias) -> tuple[StoreSettings, dict[str, ConfigSetting]]:
    """The settings of the store, and who writes ISRs."""
    settings = StoreSettings(
        write_latency=Latency(dist=rng.choice(("constant", "exponential")), mean_ms=rng.choice((1, 4, 40))),
        session_timeout_ms=rng.choice(tempo.sessions)[0],
        multi=rng.choice((1, 1, 10)),
        sessions=wanted.sessions or rng.choice((1, 1, 3)),
    )
    return settings, {ISR_UPDATES: rng.choice(("leader", "leader", "controller")), ENABLE_IDEMPOTENCE: False}


def themes_of(seed: int, bias: Bias = NO_BIAS, names: Sequence[str] = tuple(THEMES)) -> tuple[str, ...]:
    """The themes of a seed among `names`; empty: single faults."""
    if bias.themes is not None:
        return bias.themes
    if bias.weights or seed % 4 == 3:
        return ()
    turn = seed - seed // 4
    return names[turn % len(names)], names[(turn + 1 + turn // len(names)) % len(names)]


def _topic(rng: Random, brokers: int, factor: int, flushing: int, wanted: Bias) -> TopicModel:
    """`flushing`: one topic in so many flushes by messages, and one by time."""
    partitions = wanted.partitions or rng.choice((1, 1, 2, 3))
    assignments = [rng.sample(range(brokers), factor) for _ in range(partitions)]
    min_isr = wanted.min_isr or rng.choice((1, 2, 2, 2, 3)[: factor + 2])
    config: dict[str, ConfigSetting] = {MIN_INSYNC_REPLICAS: min_isr}
    flush = rng.randrange(flushing)
    if flush == 0:
        config[FLUSH_MESSAGES] = rng.choice((1, 1, 5))
    elif flush == 1:
        config[FLUSH_MS] = rng.choice((100, 1_000, 5_000))
    if rng.random() < 0.3:
        config[SEGMENT_BYTES] = rng.choice((200, 1_000))
        if rng.random() < 0.4:
            config[RETENTION_BYTES] = rng.choice((500, 2_000))
    if rng.random() < 0.08:
        config |= {UNCLEAN_LEADER_ELECTION_ENABLE: True, UNCLEAN_RECOVERY_STRATEGY: "proactive"}
    return TopicModel(name=TOPIC, assignments=assignments, config=config | dict(wanted.topic))


def _config(rng: Random, tempo: _Tempo) -> dict[str, ConfigSetting]:
    session_ms, heartbeat_ms = rng.choice(tempo.sessions)
    choices = _DRAWS.configs | tempo.patience
    config: dict[str, ConfigSetting] = {name: rng.choice(values) for name, values in choices.items()}
    config |= {BROKER_SESSION_TIMEOUT_MS: session_ms, BROKER_HEARTBEAT_INTERVAL_MS: heartbeat_ms}
    config |= {ENABLE_IDEMPOTENCE: rng.random() < 0.75, LOG_RETENTION_CHECK_INTERVAL_MS: 2_000}
    return config


def _operations(rng: Random, tempo: _Tempo, partitions: int, length_ms: int) -> tuple[Operation, ...]:
    every_ms = rng.choice(tempo.operations)
    acks = (-1, -1, *rng.choice(((), (0, 1), (1,))))
    operations: list[Operation] = []
    at_ms = BEGIN_MS
    while at_ms < BEGIN_MS + length_ms:
        place = {"at_ms": at_ms, "id": len(operations) + 1, "topic": TOPIC, "partition": rng.randrange(partitions)}
        operations.append(_operation(rng, place, acks))
        at_ms += 1 + round(rng.expovariate(1 / every_ms))
    return tuple(operations)


def _operation(rng: Random, place: dict[str, Any], acks: Sequence[int]) -> Operation:
    """A send in 70 % of cases, a read in 28 %, an election in 2 %."""
    share = rng.random()
    if share < 0.70:
        size = {"record_bytes": rng.choice((12, 12, 100))}
        return Send.model_validate(place | size | {"acks": rng.choice(acks), "records": rng.choice((1, 1, 3, 20))})
    if share < 0.98:
        reader, again, wait_ms = rng.randrange(READERS), rng.random() < 0.2, rng.choice((0, 0, 500))
        return Read(**place, reader=reader, from_start=again, max_wait_ms=wait_ms)
    return Elect(**place, unclean=rng.random() < 0.2)


def _faults(rng: Random, tempo: _Tempo, targets: Targets, length_ms: int, wanted: Bias) -> tuple[Fault, ...]:
    kinds = [name for name, kind in FAULT_KINDS.items() if kind.in_swarm and kind.is_possible(targets)]
    chosen = rng.sample(kinds, rng.choice((1, 2, 3, 4, 6, len(kinds))))
    rates = Rates(
        mean_between_ms=rng.choice(tempo.faults),
        durations_ms=tuple(sorted(rng.sample(list(tempo.durations), 3))),
        weights=dict(wanted.weights) or {kind: rng.choice((1, 2, 4)) for kind in chosen},
    )
    return timeline(rates, targets, rng, BEGIN_MS + 500, BEGIN_MS + length_ms - tempo.settling)


def _episodes(
    episodes: Sequence[Episode], scene_at: Callable[[int], Scene], rng: Random, length_ms: int
) -> list[tuple[int, Part]]:
    """These episodes, in turn, the next one when the last one is over; each part with its partition."""
    staged: list[tuple[int, Part]] = []
    at_ms, turns = BEGIN_MS + rng.randint(0, 500), cycle(episodes)
    while at_ms < BEGIN_MS + length_ms:
        scene = scene_at(at_ms)
        parts = [RequestedElection(at_ms - 200), *next(turns)(scene)]
        staged += [(scene.partition, part) for part in parts]
        at_ms = max(part.end_ms for part in parts) + rng.choice((300, 1_000, 3_000))
    return staged


def _scene(rng: Random, targets: Targets, topic: TopicModel, config: Mapping[str, ConfigSetting], at_ms: int) -> Scene:
    partition = rng.randrange(len(topic.assignments))
    leader, *followers = topic.assignments[partition]
    member, *others = rng.sample(followers, len(followers))
    lag_ms, session_ms = int(config[REPLICA_LAG_TIME_MAX_MS]), int(config[BROKER_SESSION_TIMEOUT_MS])
    return Scene(
        rng=rng,
        at_ms=at_ms,
        topic=TOPIC,
        partition=partition,
        min_isr=int(topic.config[MIN_INSYNC_REPLICAS]),
        brokers=targets.brokers,
        leader=leader,
        member=member,
        others=others,
        away_ms=lag_ms + lag_ms // 2 + rng.randint(100, 900),
        gone_ms=session_ms + rng.randint(300, 1_000),
        recovers=bool(targets.managers),
    )


def _as_staged(operations: Sequence[Operation], staged: Sequence[tuple[int, Part]]) -> tuple[Operation, ...]:
    """The operations outside quiet times, and the elections of the episodes."""
    quiet = [part for _, part in staged if isinstance(part, Quiet)]
    asked = [(partition, part) for partition, part in staged if isinstance(part, RequestedElection)]
    elections = (
        Elect(at_ms=part.at_ms, id=number, topic=TOPIC, partition=partition, unclean=part.unclean)
        for number, (partition, part) in enumerate(asked, len(operations) + 1)
    )
    left = (item for item in operations if not any(part.at_ms <= item.at_ms < part.end_ms for part in quiet))
    return (*left, *elections)


def is_operated(seed: int) -> bool:
    """Whether the plan of a seed is operated; default seeds of `v3` have a rule of their own (`draw`)."""
    return seed % OPERATED_ONE_IN == OPERATED_ONE_IN - 1


def sizes(seed: int) -> Bias:
    """The sizes of a seed's operated plan, whose themes are none."""
    rng = Random(f"{seed}/sizes")
    return Bias(
        brokers=rng.choice(_BROKERS),
        controllers=rng.choice((1, 1, 3, 5)),
        themes=(),
        within_tolerance=rng.random() < 0.9,
    )


def operated(plan: Plan) -> Plan:
    """The plan with operations, further topics and faults of all kinds; its own faults are replaced."""
    rng = Random(f"{plan.seed}/operated")
    first = plan.topics[0]
    topics = (first, *(_further_topic(rng, plan, name) for name in rng.sample(_FURTHER_TOPICS, rng.choice((0, 1, 2)))))
    spec = plan.spec()
    targets = Targets(
        brokers=spec.broker_ids,
        controllers=spec.controller_ids,
        clients=spec.client_ids,
        topics={topic.name: len(topic.assignments) for topic in topics},
        replication_factor=len(first.assignments[0]),
        managers=spec.manager_ids,
        stores=(STORE,) if spec.has_store_metadata else (),
    )
    has_authorizer = rng.random() < 0.8 and not spec.has_store_metadata
    config = dict(plan.config)
    if has_authorizer:
        config |= {AUTHORIZER_CLASS_NAME: "standard", SUPER_USERS: OPERATOR, ALLOW_EVERYONE_IF_NO_ACL_FOUND: True}
    has_late_batches = rng.random() < 0.3 and not spec.has_store_metadata
    if has_late_batches:
        config |= {ENABLE_IDEMPOTENCE: True, DELIVERY_TIMEOUT_MS: _GIVES_UP_MS, REQUEST_TIMEOUT_MS: 1_000}
    begin_ms, end_ms = plan.operations[0].at_ms + 500, plan.operations[-1].at_ms - _SETTLING_MS

    def drawn(operations: bool, between_ms: Sequence[int], durations_ms: Sequence[int]) -> tuple[Fault, ...]:
        """Faults of some or all kinds that are operations, or that are none."""
        possible = [(name, kind) for name, kind in FAULT_KINDS.items() if kind.is_possible(targets)]
        kinds = [
            name for name, kind in possible if kind.is_operation is operations and (has_authorizer or name != "deny")
        ]
        chosen = rng.sample(kinds, rng.choice((4, *(len(kinds),) * 3)))
        rates = Rates(
            mean_between_ms=rng.choice(between_ms),
            durations_ms=tuple(sorted(rng.sample(durations_ms, 3))),
            weights=dict.fromkeys(chosen, 1),
        )
        return timeline(rates, targets, rng, begin_ms, end_ms)

    failures = drawn(False, _BETWEEN_FAULTS_MS, _FAULTS_LAST_MS)
    if has_late_batches:
        failures += _late_batches(rng, targets, begin_ms)
    changes = drawn(True, _BETWEEN_OPERATIONS_MS, _OPERATIONS_LAST_MS)
    return plan.model_copy(
        update={
            "topics": topics,
            "config": config,
            "racks": 0 if spec.has_store_metadata else rng.choice((0, 2, 3)),
            "operations": tuple(_spread(rng, operation, topics) for operation in plan.operations),
            "faults": tuple(sorted((*failures, *changes), key=lambda fault: fault.at_ms)),
        }
    )


def _late_batches(rng: Random, targets: Targets, begin_ms: int) -> tuple[Fault, ...]:
    """Batches, or copies of them, arrive when the producer has given later ones up and has its next epoch."""
    effect, late_ms = rng.choice(_LATE), begin_ms + rng.randrange(500)
    lost_ms = late_ms + 1_500
    clients, brokers, back_ms = targets.clients, targets.brokers, lost_ms + _GIVES_UP_MS + 200
    return (
        recipes.disturb(clients, brokers, effect, late_ms, lost_ms, only="produce", delay_ms=2 * _GIVES_UP_MS),
        recipes.disturb(clients, brokers, "lose", lost_ms, back_ms, only="produce"),
    )


def _further_topic(rng: Random, plan: Plan, name: str) -> TopicModel:
    """A further topic with as many replicas as the first, and a min ISR of its own, or that of the cluster."""
    factor = len(plan.topics[0].assignments[0])
    assignments = [rng.sample(range(plan.brokers), factor) for _ in range(rng.choice((1, 1, 2)))]
    min_isr = rng.choice((None, *range(1, factor + 1)))
    return TopicModel(
        name=name, assignments=assignments, config={} if min_isr is None else {MIN_INSYNC_REPLICAS: min_isr}
    )


def _spread(rng: Random, operation: Operation, topics: tuple[TopicModel, ...]) -> Operation:
    """The operation on a partition of any topic."""
    topic = rng.choice(topics)
    return operation.model_copy(update={"topic": topic.name, "partition": rng.randrange(len(topic.assignments))})
