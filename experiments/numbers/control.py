"""What a controller gains and costs (L21): S1's list of benefits, and its one downside."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from experiments.numbers.conditions import Conditions, Row, same
from experiments.numbers.failover import fail_over, replicas_of, seconds
from experiments.numbers.measured_cluster import KEEP, MeasuredCluster
from protocol.events.store import CommandCarriedOut, ControllerElected, StoreSessionEnded
from protocol.ids import TimeMs

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
    died_ms, commands = cluster.now_ms, cluster.count(CommandCarriedOut)
    cluster.engine.crash(former, KEEP)
    commanded_ms = cluster.await_("INIT commands", lambda: cluster.count(CommandCarriedOut) - commands == REPLICAS)
    ended_ms = next(time for time, _, trace in cluster.events(StoreSessionEnded, died_ms) if trace.owner == former)
    elected_ms = next(time for time, _, _ in cluster.events(ControllerElected, died_ms))
    return ControllerChange(elected_ms - ended_ms, commanded_ms - ended_ms)


def benefits(conditions: Conditions) -> list[Row]:
    """L21."""
    course, change = fail_over(conditions), change_controller(conditions)
    batched = fail_over(conditions, multi=max(conditions.multi))
    watchers, messages = REPLICAS * conditions.partitions, (REPLICAS - 1) * conditions.partitions
    commands = sum(course.commands.values())
    sooner = batched.published_ms - batched.noticed_ms < course.published_ms - course.noticed_ms
    reading = seconds(conditions.partitions * (conditions.read_ms + 2 * conditions.network_ms))
    return [
        same("brokers that decide in a failover", 1, course.deciders),
        Row("publishing, one update per transaction", None, seconds(course.published_ms - course.noticed_ms), "s"),
        Row(
            f"publishing, {max(conditions.multi)} updates per transaction",
            "less",
            seconds(batched.published_ms - batched.noticed_ms),
            "s",
            sooner,
        ),
        Row("watches in the store", "fewer", course.watches, "", course.watches < watchers, watchers),
        Row("messages to brokers in a failover", "fewer", commands, "", commands < messages, messages),
        Row("cost, from the end of the controller's session: next one elected", None, seconds(change.elected_ms), "s"),
        Row("cost, the same: all brokers have INIT", None, seconds(change.commanded_ms), "s", model=reading),
    ]
