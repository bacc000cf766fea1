"""Kafka's wire protocol at a broker, as a state machine: bytes of connections in, bytes out; no socket, no clock."""

from __future__ import annotations

import sys

if "hypothesis" not in sys.modules:
    # kio imports Hypothesis where it is installed, to register strategies. That would be 40 % of a node's start.
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
    try:
        from kio.static import primitive as primitive
    finally:
        del sys.modules["hypothesis"]
