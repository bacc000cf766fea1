"""Settings that meet the same events: that they do, why, and what would separate them.

Trial k of two settings sees the same failures; if every trial has the same events of the same weight in both
(`estimation/pairs.py`), the failures of the study bring nothing into play in which the settings differ. More trials do
not change that, other failures may. The reasons follow from the parameters of the cells.
"""

from __future__ import annotations

import math

from experiments.studies.design.model import CellParameters
from experiments.studies.estimation.moments import LEAST_EFFECTIVE_SAMPLE_SIZE
from experiments.studies.report.settings import Group, Setting
from experiments.studies.report.words import listed

_NO_ELR = ("v3", "kip-497")


def are_alike(reference: Setting, other: Setting, metric: str) -> bool:
    """Whether another setting has the events of the reference of its group, and enough of them were seen, by their
    weights, to say so: with 10, less than a quarter of the events may differ (95 %, one-sided)."""
    compared, seen = other.against_reference(metric), reference.estimates.estimates[metric]
    return compared.identical and not compared.degenerate and seen.effective_sample_size >= LEAST_EFFECTIVE_SAMPLE_SIZE


def alike(group: Group, metric: str) -> tuple[Setting, ...]:
    """The settings that have the events of the reference, with it, in the order of the study; empty if none has."""
    reference = group.reference
    found = tuple(
        setting for setting in group.settings if setting is reference or are_alike(reference, setting, metric)
    )
    return found if len(found) > 1 else ()


def reasons(settings: tuple[Setting, ...]) -> str:
    """Why settings meet the same events, as far as their parameters say so, in one sentence."""
    params, changed = settings[0].parameters, changed_in(settings)
    if changed != ["min_insync_replicas"]:
        return f"Why: none of these failures brings into play what is decided by {listed(changed)}."
    parts = []
    if is_always_crash(params):
        parts.append("every failure is a crash without a clean-shutdown file")
    if params.unclean_recovery_strategy == "proactive":
        parts.append("the first live replicas elect a leader with either min ISR")
    elif params.generation in _NO_ELR:
        parts.append(f"{params.generation} has no ELR, and elects the same broker with either min ISR")
    elif is_always_crash(params):
        parts.append(
            "a member leaves the ELR after an unclean shutdown, so the last known leader is elected with either min ISR"
            if params.generation == "kip-966-elr"
            else "a member leaves the ELR after an unclean shutdown"
        )
    if params.disk_loss_probability == 1.0:
        parts.append("every crash takes the disk, whatever was flushed")
    elif math.isinf(params.exposed_ms):
        parts.append(
            "nothing reaches the disk but by a clean shutdown (writeback never, flush never), so a machine that "
            "crashes takes all that was acknowledged since, however long ago"
        )
    return f"Why: {'; '.join(parts) or 'none of these failures strikes while the ISR is below the larger min ISR'}."


def separators(settings: tuple[Setting, ...]) -> str:
    """What change of failures or settings would show a difference, in one sentence; empty if nothing follows."""
    params, found = settings[0].parameters, []
    if changed_in(settings) == ["kafka_release"]:
        moved = "What would separate them: replicas that move while brokers are down (`reassignments`)."
        return moved if params.reassignments is None else ""
    if is_always_crash(params):
        found.append("controlled shutdowns (`unclean_probability` below 1, or `rolling_restart`)")
    if params.disk_loss_probability == 1.0:
        found.append("crashes that keep the disk (`disk_loss_probability` below 1)")
    elif math.isinf(params.exposed_ms):
        found.append("records that reach the disk (`writeback` or `flush_interval`)")
    if params.generation in _NO_ELR:
        found.append("Eligible Leader Replicas (`generation: kip-966-elr`)")
    if params.unclean_recovery_strategy == "proactive":
        found.append("no unclean election (`unclean_recovery_strategy: balanced`)")
    return f"What would separate them: {listed(found, 'or')}." if found else ""


def caution(settings: tuple[Setting, ...]) -> str:
    """What the equality is no reason for; empty where it is none for fewer copies."""
    least = sorted({setting.parameters.min_insync_replicas for setting in settings})
    if len(least) == 1:
        return ""
    return (
        f"That is no reason for min ISR {least[0]} instead of {least[-1]}: it holds for these failures alone, and the "
        f"larger min ISR acknowledges nothing that fewer than {least[-1]} replicas have."
    )


def changed_in(settings: tuple[Setting, ...]) -> list[str]:
    """The decisions in which settings differ."""
    first = settings[0].decided
    return [name for name in first if any(setting.decided.get(name) != first[name] for setting in settings)]


def is_always_crash(params: CellParameters) -> bool:
    """Whether no failure of a cell is a controlled shutdown."""
    if params.rolling_restart is not None:
        return False
    if params.failures is not None:
        return all(outage.kind != "clean" for outage in params.failures.outages)
    return params.unclean_probability == 1.0 or (params.broker_mttf is None and not params.burst)
