"""librdkafka, the client library of Kafka's that `pip install 'isray[kafka]'` brings."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from experiments.support.errors import InputError

INSTALL = "confluent-kafka, which pip install 'isray[kafka]' brings"


def librdkafka(asking: str, module: str = "confluent_kafka") -> Any:
    """The module. InputError, which names the command or option that is `asking`, where it is not installed."""
    try:
        return import_module(module)
    except ImportError as error:
        raise InputError(asking, "", f"no module {error.name}", INSTALL) from error
