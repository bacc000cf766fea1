"""From sums over trials to estimates with confidence intervals."""

from __future__ import annotations
