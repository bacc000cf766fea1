"""Exhaustive search of a small cluster (docs/explore.md)."""
