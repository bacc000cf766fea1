"""Markov models of small clusters, which the simulation must agree with (docs/theory.md)."""

from __future__ import annotations

from experiments.studies.theory.answers import answer

__all__ = ["answer"]
