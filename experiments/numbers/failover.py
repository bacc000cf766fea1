"""A broker dies that leads all partitions: how long each step of its failover takes, and what it costs (L1, L2, L4, L5,
L21).

S1 names six steps ("End-to-end latency during a broker failure"). In this measurement they end when

| step | S1 | ends when |
|---|---|---|
| 1 | the broker shuts down | its session ends; after a crash that takes up to the session timeout |
| 2 | the watch fires in the controller | the event has arrived at the controller |
| 3 | leaders are changed and published | the store has answered the last write; before, the states are read |
| 4 | the brokers are informed | the last broker has carried out its command |
| 5 | the leader waits for followers | the last follower's first fetch that its new leader accepts has arrived |
| 6 | the follower truncates and fetches | a record with acks=all is acknowledged in each partition of a sample |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import ceil

from experiments.numbers.conditions import Conditions, Row, compared, same
from experiments.numbers.measured_cluster import CONTROLLER, KEEP, LEADER, MeasuredCluster, Sent
from protocol.config import ISR_UPDATES
from protocol.events.broker import BecameLeader
from protocol.events.controller import MetadataCommitted, SessionExpired
from protocol.events.store import CommandCarriedOut, ControllerElected, StoreSessionEnded
from protocol.features import LOG_GENERATIONS, Generation
from protocol.ids import STORE, NodeId, TimeMs
from protocol.messages.data import FetchRequest
from protocol.messages.store import Check, StoreRead, StoreWrite, WatchEvent
from protocol.messages.v3 import LeaderAndIsrRequest

SAMPLE = 20
NETWORK_MS = 1
"""What each message takes in addition when the steps are measured again; without it only the store takes time."""


@dataclass(frozen=True, slots=True)
class FailoverCourse:
    """One failover of `v3`: the ends of the steps in ms after the broker's death, and what was sent meanwhile.
    `read_ms` is within step 3: the states have been read, and the first one is written. `commands` are LeaderAndIsr
    requests by broker, `deciders` the brokers that sent any, `watches` those that were set before.
    """

    expired_ms: TimeMs
    noticed_ms: TimeMs
    read_ms: TimeMs
    published_ms: TimeMs
    commanded_ms: TimeMs
    fetched_ms: TimeMs
    committed_ms: TimeMs
    updates: int
    transactions: int
    reads: int
    commands: Mapping[NodeId, int]
    deciders: int
    watches: int

    @property
    def writing_ms(self) -> TimeMs:
        """The time of the conditional writes alone: S1's 40 s."""
        return self.published_ms - self.read_ms

    @property
    def publishing_ms(self) -> TimeMs:
        """The time of step 3, reads and writes."""
        return self.published_ms - self.noticed_ms


def replicas_of(partitions: int, leader: NodeId, *followers: NodeId) -> list[tuple[NodeId, ...]]:
    """Replicas of partitions that one broker leads and two follow, which would lead half of them each."""
    orders = (followers, tuple(reversed(followers)))
    return [(leader, *orders[index % 2]) for index in range(partitions)]


@cache
def fail_over(conditions: Conditions, sessions: int = 1, multi: int = 1, mode: str = LEADER) -> FailoverCourse:
    """Kills the broker that leads all partitions of a cluster of three brokers, and is not the controller. `mode` says
    who writes ISRs.
    """
    cluster = MeasuredCluster(conditions, sessions=sessions, multi=multi, config={ISR_UPDATES: mode})
    controller = cluster.controller
    victim, survivor = cluster.others(controller)
    cluster.create(replicas_of(conditions.partitions, victim, controller, survivor))
    watches = len(cluster.store.watches)

    died_ms, led = cluster.now_ms, cluster.counts[BecameLeader]
    cluster.engine.crash(victim, KEEP)
    cluster.await_("new leaders", lambda: cluster.counts[BecameLeader] - led == conditions.partitions)
    sample = [cluster.produce(partition) for partition in range(min(SAMPLE, conditions.partitions))]
    acknowledged_ms = cluster.await_acknowledgements(sample)

    expired_ms = next(time for time, _, trace in cluster.events(StoreSessionEnded, died_ms) if trace.owner == victim)
    noticed_ms = min(arrival(sent) for sent, _ in cluster.messages(WatchEvent, expired_ms, STORE, controller))
    writes = cluster.messages(StoreWrite, noticed_ms, controller)
    commands = cluster.messages(LeaderAndIsrRequest, noticed_ms, controller)
    obeyed = list(cluster.events(CommandCarriedOut, noticed_ms))
    fetched_ms = max(arrival(sent) for sent, fetch in cluster.messages(FetchRequest, noticed_ms) if is_first(fetch))
    return FailoverCourse(
        expired_ms=expired_ms - died_ms,
        noticed_ms=noticed_ms - died_ms,
        read_ms=writes[0][0].sent_ms - died_ms,
        published_ms=commands[0][0].sent_ms - died_ms,
        commanded_ms=max(time for time, _, _ in obeyed) - died_ms,
        fetched_ms=fetched_ms - died_ms,
        committed_ms=max(fetched_ms, acknowledged_ms) - died_ms,
        updates=sum(not isinstance(operation, Check) for _, write in writes for operation in write.operations),
        transactions=len(writes),
        reads=len(cluster.messages(StoreRead, noticed_ms, controller)),
        commands=Counter(node for _, node, _ in obeyed),
        deciders=len({sent.source for sent, _ in cluster.messages(LeaderAndIsrRequest, noticed_ms)}),
        watches=watches,
    )


def is_first(fetch: FetchRequest) -> bool:
    """Whether a follower without records begins to fetch, or begins again."""
    return any(part.fetch_offset == 0 for part in fetch.partitions)


def arrival(sent: Sent) -> TimeMs:
    """When a message has arrived, or would have been lost."""
    return sent.sent_ms if sent.arrived_ms is None else sent.arrived_ms


@dataclass(frozen=True, slots=True)
class LogFailover:
    """A failover where the metadata are in a log: from the end of the broker's session to the last new leader, and the
    commits of the log meanwhile.
    """

    changed_ms: TimeMs
    commits: int


@cache
def fail_over_by_log(conditions: Conditions, generation: Generation) -> LogFailover:
    """The same failover in a later generation, with three controllers."""
    cluster = MeasuredCluster(conditions, generation, controllers=3)
    cluster.create(replicas_of(conditions.partitions, *cluster.engine.spec.broker_ids))
    died_ms, led = cluster.now_ms, cluster.counts[BecameLeader]
    cluster.engine.crash(0, KEEP)
    changed_ms = cluster.await_("new leaders", lambda: cluster.counts[BecameLeader] - led == conditions.partitions)
    expired_ms = next(time for time, _, _ in cluster.events(SessionExpired, died_ms))
    return LogFailover(changed_ms - expired_ms, sum(1 for _ in cluster.events(MetadataCommitted, expired_ms)))


def serial(conditions: Conditions) -> list[Row]:
    """L1."""
    claimed = seconds(conditions.partitions * conditions.write_ms)
    model = seconds(conditions.partitions * (conditions.write_ms + 2 * conditions.network_ms))
    course = fail_over(conditions)
    rows = [
        compared("writes of a failover, one after the other", claimed, seconds(course.writing_ms), "s", model),
        Row("with the reads before them (step 3.1)", None, seconds(course.publishing_ms), "s"),
    ]
    slower = replace(conditions, network_ms=conditions.network_ms + NETWORK_MS)
    for generation in LOG_GENERATIONS:
        found = fail_over_by_log(slower, generation)
        what = f"{generation.value}, network {slower.network_ms} ms: from the end of the session to the last leader"
        rows.append(Row(what, None, seconds(found.changed_ms), "s", model=seconds(found.commits * conditions.write_ms)))
    return rows


def spread(conditions: Conditions) -> list[Row]:
    """L2."""
    each = conditions.write_ms + 2 * conditions.network_ms
    whole = seconds(conditions.partitions * conditions.write_ms)
    rows = []
    for sessions in conditions.sessions:
        measured = seconds(fail_over(conditions, sessions).writing_ms)
        model = seconds(ceil(conditions.partitions / sessions) * each)
        rows.append(compared(f"writes, sessions: {sessions}", whole / sessions, measured, "s", model))
    for multi in conditions.multi:
        measured = seconds(fail_over(conditions, multi=multi).writing_ms)
        model = seconds(ceil(conditions.partitions / multi) * each)
        rows.append(Row(f"writes, updates per transaction: {multi}", None, measured, "s", model=model))
    largest = max(conditions.multi)
    for mode in (LEADER, CONTROLLER):
        course = fail_over(conditions, multi=largest, mode=mode)
        what = f"reads and writes, updates per transaction: {largest}, ISRs written by the {mode}"
        rows.append(Row(what, None, seconds(course.publishing_ms), "s"))
    return rows


def steps(conditions: Conditions) -> list[Row]:
    """L4."""
    rows = []
    for network_ms in (conditions.network_ms, conditions.network_ms + NETWORK_MS):
        durations = durations_of(fail_over(replace(conditions, network_ms=network_ms)))
        longest = max(durations[1:], key=lambda step: step[1])[0]
        rows += [Row(f"network {network_ms} ms: {name}", None, seconds(duration), "s") for name, duration in durations]
        rows.append(same(f"network {network_ms} ms: the longest of steps 2 to 6", PUBLISH, longest))
    return rows


PUBLISH = "step 3, publish"


def durations_of(course: FailoverCourse) -> list[tuple[str, int]]:
    ends = {
        "step 1, end of the session": course.expired_ms,
        "step 2, watch": course.noticed_ms,
        PUBLISH: course.published_ms,
        "step 4, commands": course.commanded_ms,
        "step 5, followers connect": course.fetched_ms,
        "step 6, fetch and commit": course.committed_ms,
    }
    return [(name, end - begin) for (name, end), begin in zip(ends.items(), (0, *ends.values()), strict=False)]


def costs(conditions: Conditions) -> list[Row]:
    """L5."""
    course = fail_over(conditions)
    return [
        same("store writes per affected partition", 1, course.updates / conditions.partitions),
        same("commands per live broker", 1, max(course.commands.values())),
    ]


def seconds(duration_ms: float) -> float:
    return duration_ms / 1_000


REPLICAS = 3


@dataclass(frozen=True, slots=True)
class ControllerChange:
    """From the end of a controller's session: when the next one is elected, and when every broker has its INIT."""

    elected_ms: TimeMs
    commanded_ms: TimeMs


@cache
def change_controller(conditions: Conditions) -> ControllerChange:
    """Kills a controller that has no replicas, so that nothing else has to be decided."""
    cluster = MeasuredCluster(conditions, brokers=REPLICAS + 1)
    former = cluster.controller
    cluster.create(replicas_of(conditions.partitions, *cluster.others(former)))
    died_ms, commands = cluster.now_ms, cluster.counts[CommandCarriedOut]
    cluster.engine.crash(former, KEEP)
    commanded_ms = cluster.await_("INIT commands", lambda: cluster.counts[CommandCarriedOut] - commands == REPLICAS)
    ended_ms = next(time for time, _, trace in cluster.events(StoreSessionEnded, died_ms) if trace.owner == former)
    elected_ms = next(time for time, _, _ in cluster.events(ControllerElected, died_ms))
    return ControllerChange(elected_ms - ended_ms, commanded_ms - ended_ms)


def benefits(conditions: Conditions) -> list[Row]:
    """L21."""
    course, change = fail_over(conditions), change_controller(conditions)
    largest = max(conditions.multi)
    batched = fail_over(conditions, multi=largest)
    watchers, messages = REPLICAS * conditions.partitions, (REPLICAS - 1) * conditions.partitions
    commands = sum(course.commands.values())
    sooner = batched.publishing_ms < course.publishing_ms
    reading = seconds(conditions.partitions * (conditions.read_ms + 2 * conditions.network_ms))
    return [
        same("brokers that decide in a failover", 1, course.deciders),
        Row("publishing, one update per transaction", None, seconds(course.publishing_ms), "s"),
        Row(f"publishing, {largest} updates per transaction", "less", seconds(batched.publishing_ms), "s", sooner),
        Row("watches in the store", "fewer", course.watches, "", course.watches < watchers, watchers),
        Row("messages to brokers in a failover", "fewer", commands, "", commands < messages, messages),
        Row("cost, from the end of the controller's session: next one elected", None, seconds(change.elected_ms), "s"),
        Row("cost, the same: all brokers have INIT", None, seconds(change.commanded_ms), "s", model=reading),
    ]
