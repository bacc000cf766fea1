"""The jars of Kafka for all tests of this folder."""

from __future__ import annotations

from tests.kafka.kafka_jars import jars

__all__ = ["jars"]
