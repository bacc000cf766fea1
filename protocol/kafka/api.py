"""What an API is: its key, the versions that a broker serves, and the handler of its requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from protocol.kafka.view import Client, View
from protocol.kafka.wire import KafkaRequest

ApiHandler = Callable[[View, Client, KafkaRequest], Any]
"""Returns the values of the response, or a generator that does (`calls.Handler`)."""


@dataclass(frozen=True, slots=True)
class Api:
    """An API at versions `low` to `high`."""

    key: int
    name: str
    low: int
    high: int
    handler: ApiHandler
