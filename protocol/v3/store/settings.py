"""The settings of a store and of its clients.

A store carries out each write and each read after a latency, which stands for its disks and its quorum; the design's
figure is 4 ms for a write (S1). Latencies are whole milliseconds, as all times of nodes are.
"""

from __future__ import annotations

import math
from random import Random
from typing import Annotated, Literal

from pydantic import Field, model_validator

from protocol.messages.base import Frozen

MAX_LATENCY_MS = 60_000
MIN_SESSION_TIMEOUT_MS = 100
MAX_SESSION_TIMEOUT_MS = 3_600_000
MAX_MULTI = 100_000
MAX_SESSIONS = 100


class Latency(Frozen):
    """How long a request takes, with the given mean; `shape` is the sigma of a log-normal one, others have none."""

    dist: Literal["constant", "exponential", "lognormal"] = "constant"
    mean_ms: Annotated[int, Field(ge=0, le=MAX_LATENCY_MS)]
    shape: Annotated[float, Field(gt=0.0, le=10.0)] | None = None

    @model_validator(mode="after")
    def _check_shape(self) -> Latency:
        if (self.shape is not None) != (self.dist == "lognormal"):
            raise ValueError("allowed: shape with lognormal, and only there")
        return self

    def draw_ms(self, rng: Random) -> int:
        """A draw in whole milliseconds. A constant draws nothing from `rng`."""
        if self.dist == "constant" or self.mean_ms == 0:
            return self.mean_ms
        if self.dist == "exponential":
            return round(rng.expovariate(1.0 / self.mean_ms))
        sigma = self.shape or 1.0
        return round(rng.lognormvariate(math.log(self.mean_ms) - sigma * sigma / 2.0, sigma))


class StoreSettings(Frozen):
    """`multi`: updates of the controller per transaction, of one write latency; `sessions`: sessions in parallel."""

    write_latency: Latency = Latency(mean_ms=4)
    read_latency: Latency = Latency(mean_ms=1)
    session_timeout_ms: Annotated[int, Field(ge=MIN_SESSION_TIMEOUT_MS, le=MAX_SESSION_TIMEOUT_MS)] = 6_000
    multi: Annotated[int, Field(ge=1, le=MAX_MULTI)] = 1
    sessions: Annotated[int, Field(ge=1, le=MAX_SESSIONS)] = 1
