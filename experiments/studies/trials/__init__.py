"""One trial of a study, and batches of trials."""

from __future__ import annotations
