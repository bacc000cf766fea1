"""When which broker fails, how, and for how long."""

from __future__ import annotations
