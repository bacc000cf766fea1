"""The conditions under which all numbers are measured, and what a measurement reports.

Time is virtual. A store carries out a write in `write_ms` and a read in `read_ms`, one request of a session after the
other; every message takes `network_ms`. With `network_ms` 0 the latency of a write is what its client waits, which is
how S1 states its 4 ms. Processors and disks of brokers take no time.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.v3.store.settings import Latency, StoreSettings

Value = float | str
"""A number, or in words what happened."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """Sizes and latencies. `partitions` change their leaders in a failover; `sessions` and `multi` are the numbers of
    store sessions and of updates per transaction that are compared (L2). Times are in milliseconds.
    """

    partitions: int = 10_000
    write_ms: int = 4
    read_ms: int = 1
    network_ms: int = 0
    session_timeout_ms: int = 6_000
    sessions: tuple[int, ...] = (1, 2, 5, 10, 20)
    multi: tuple[int, ...] = (10, 100, 1_000)
    seed: int = 0

    def store(self, sessions: int = 1, multi: int = 1) -> StoreSettings:
        return StoreSettings(
            write_latency=Latency(mean_ms=self.write_ms),
            read_latency=Latency(mean_ms=self.read_ms),
            session_timeout_ms=self.session_timeout_ms,
            sessions=sessions,
            multi=multi,
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One measured value. `claimed` is what the source says, scaled to the conditions, None where it gives no value;
    `model` is what a formula gives for the same thing. `holds` is None where nothing is claimed.
    """

    what: str
    claimed: Value | None
    measured: Value
    unit: str = ""
    holds: bool | None = None
    model: float | None = None

    @property
    def ratio(self) -> float | None:
        """Measured over claimed, where both are numbers."""
        if isinstance(self.claimed, str) or isinstance(self.measured, str) or not self.claimed:
            return None
        return self.measured / self.claimed


def about(claimed: float, measured: float, tolerance: float = 0.05) -> bool:
    """Whether a measured value is what is claimed, within a share of it."""
    return abs(measured - claimed) <= tolerance * abs(claimed)


def compared(what: str, claimed: float, measured: float, unit: str, model: float | None = None) -> Row:
    """A row whose claim holds if the measured value is about the claimed one."""
    return Row(what, claimed, measured, unit, about(claimed, measured), model)


def same(what: str, claimed: Value, measured: Value, unit: str = "") -> Row:
    """A row whose claim holds if both values are equal."""
    return Row(what, claimed, measured, unit, claimed == measured)
