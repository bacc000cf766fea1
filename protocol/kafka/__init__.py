"""Kafka's wire protocol at a broker, as a state machine: bytes of connections in, bytes out; no socket, no clock."""

from __future__ import annotations

import sys
from importlib import import_module

if "hypothesis" not in sys.modules:
    # kio imports Hypothesis where it is installed, to register strategies. That would be 40 % of a node's start.
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
    try:
        import_module("kio.static.primitive")
    finally:
        del sys.modules["hypothesis"]
