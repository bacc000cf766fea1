"""The active controller moves leaderships back to the preferred replicas by itself, if configs say so (KAFKA-13682).

Leaderships move to other brokers whenever a broker stops, and nothing brings them back but an election. Every
`leader.imbalance.check.interval.seconds`, counted from the moment at which the controller has become active, it elects
the preferred leaders that are in the ISR: at most `MAX_ELECTIONS` at a time, since their records are one batch, and at
once again where there may be more. It does not read `leader.imbalance.per.broker.percentage`, as Kafka's does not.
"""

from __future__ import annotations

from protocol.config import AUTO_LEADER_REBALANCE_ENABLE, LEADER_IMBALANCE_CHECK_INTERVAL_SECONDS, ClusterConfig
from protocol.contract import Outbox
from protocol.controller.elections import preferred_leaders
from protocol.ids import TimeMs
from protocol.nodes.controller_log import ControllerLog

REBALANCE_TIMER = "leader-rebalance"
MAX_ELECTIONS = 1_000
"""Elections in one batch of records (Kafka's limit)."""


class LeaderRebalance:
    """The timer of the checks, which the active controller has."""

    def __init__(self, config: ClusterConfig, log: ControllerLog, out: Outbox) -> None:
        self._is_enabled = bool(config.values[AUTO_LEADER_REBALANCE_ENABLE])
        self._interval_ms = config.int_value(LEADER_IMBALANCE_CHECK_INTERVAL_SECONDS) * 1_000
        self._log = log
        self._out = out

    def begin(self, now_ms: TimeMs) -> None:
        if self._is_enabled:
            self._out.set_timer(REBALANCE_TIMER, now_ms + self._interval_ms)

    def end(self) -> None:
        if self._is_enabled:
            self._out.cancel_timer(REBALANCE_TIMER)

    def fire(self, now_ms: TimeMs) -> None:
        records = preferred_leaders(self._log.state, MAX_ELECTIONS)
        self._log.write(records)
        more = len(records) == MAX_ELECTIONS
        self._out.set_timer(REBALANCE_TIMER, now_ms if more else now_ms + self._interval_ms)
