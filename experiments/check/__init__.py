"""Checks of a run: invariants after every event, and histories and recordings afterwards (docs/check.md)."""
