"""Study files, their parameters and their results, from the declarations in `experiments.studies`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from experiments.reference.markdown import code, default, sections, table
from experiments.studies.design.loader import SWEEPABLE, StudyFile
from experiments.studies.design.model import PARAMETERS
from experiments.studies.design.study import Precision
from experiments.studies.estimation.times import KEYS
from experiments.studies.sweeps.output import LAYOUT
from experiments.studies.trace.metrics import METRICS
from experiments.studies.trace.reasons import Reason
from experiments.studies.trace.schema import TRACE_SCHEMA
from experiments.studies.trials.batch import TRIALS_SCHEMA
from experiments.support.fields import allowed_values

TITLE = "Study files"
SUMMARY = "every field and parameter of a study, its output directory and `gold/cells.json`"

_SECTIONS = {"cells": "a list"} | dict.fromkeys(("base", "sweep", "zip", "precision", "files"), "a mapping")


def page() -> str:
    return sections(
        "`isray study run FILE --out DIR` runs a study file; [studies.md](../studies.md) explains how to write one. "
        "Durations are a number and a unit: `250ms`, `30s`, `15m`, `6h`, `30d`, `1y` (365 days).",
        "## Fields of the file",
        table(("field", "allowed", "default", "meaning"), _fields(StudyFile.model_json_schema())),
        "A file has at most one of `sweep`, `zip` and `cells`, and either `trials` or `precision`. `precision` has:",
        table(("field", "allowed", "default", "meaning"), _fields(Precision.model_json_schema())),
        "## Parameters",
        "In `base`, `sweep`, `zip` and `cells`.",
        table(
            ("parameter", "unit", "allowed", "default", "meaning"),
            ((code(it.name), it.unit, it.allowed, code(it.default), it.description) for it in SWEEPABLE.values()),
        ),
        "## Output directory",
        table(("path", "content"), [(code(path), content) for path, content in LAYOUT.items()]),
        f"Columns of `trace/`: {_columns(TRACE_SCHEMA.names)}. Columns of `trials/`: {_columns(TRIALS_SCHEMA.names)}. "
        "What they mean, and the rules that they keep: "
        "[how to analyse traces of your own](../how-to/analyse-traces-of-your-own.md).",
        "## `gold/cells.json`",
        "A list with one object per cell: each swept parameter as the file gives it, then the keys below. A metric is "
        "an object `{estimate, ci_low, ci_high}` with its 95 % confidence interval; `one_sided`: nothing was seen, and "
        "`ci_high` is a one-sided bound; `degenerate`: the weights are too uneven for an interval; `events`: the "
        "events or episodes seen, `effective_sample_size`: what they are worth if weighted. "
        "[statistics.md](../statistics.md) has the formulas.",
        table(("key", "unit", "meaning", "interval"), _keys()),
        "## Reasons",
        "Each loss and each outage is attributed to one of these rules, with the failures that made it "
        "([studies.md](../studies.md#why)).",
        table(("reason", "what happened", "rule"), ((code(it.key), it.sentence, it.source) for it in Reason)),
    )


def _fields(schema: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, field in schema["properties"].items():
        if name == "functions":
            continue
        allowed = _SECTIONS.get(name) or (PARAMETERS[name].allowed if name in PARAMETERS else allowed_values(field))
        value = "required" if name in schema["required"] else default(field["default"])
        yield code(name), allowed, value, field["description"]


def _columns(names: list[str]) -> str:
    return ", ".join(map(code, names))


def _keys() -> Iterator[tuple[str, str, str, str]]:
    yield code("trials"), "trials", "trials of the cell", ""
    yield code("partition_years"), "years", "observed time: trials x partitions x duration", ""
    yield (
        code("estimator"),
        "",
        "what the trials of the cell used: `plain`, `importance`, `splitting`; `multifidelity` if they have controls",
        "",
    )
    yield code("controls"), "", "controls of other failures that the trials have (docs/rare-events.md)", ""
    meaning = "of trials and the controls of their failures: for the study's objective, or, if that has fewer than ten "
    yield code("correlation"), "", meaning + "events, for the time not writable", ""
    yield code("gain"), "", "by what factor the controls reduce the variance of that number", ""
    meaning = "by what factor the weights of drawn trials reduce it besides; null if they are not drawn"
    yield code("drawing_gain"), "", meaning, ""
    for metric in METRICS:
        yield code(metric.name), metric.estimator.unit, metric.meaning, metric.estimator.interval
    meaning = (
        "`{p50, p99, max}` of the outages that ended within their trial, and `outages`, their number; "
        "`p50_ci_low` and the like: their limits; null if there was none"
    )
    yield code("failover_ms"), "ms", meaning, "order statistics, with as many times as the trials are worth"
    comparison = (
        "each metric against the same metric of the {} cell: `{{difference, ratio, pairs, pairing_gain, identical, "
        "degenerate}}`; `identical`: no pair of trials differs in what was seen"
    )
    with_first, with_reference = (comparison.format(name) for name in ("first", "reference"))
    interval = "recovered from the limits of both, with the correlation of pairs"
    yield code("compared_with_first"), "", with_first, interval
    interval = "the same, simultaneous over all pairs of cells of the group (Bonferroni)"
    yield code("compared_with_reference"), "", with_reference, interval
    group = "its group: the cells that differ in settings, not in assumptions about failures"
    yield code("may_be_best"), "", f"whether the study does not eliminate the cell as the best one of {group}", ""
    yield code("recommended"), "", "whether the study shows that it is the best one; may hold for no cell", ""
    yield code("reference"), "", "the cell of the group that the others are compared with", ""
    trials = "about how many trials would distinguish it from the cell with the lowest estimate; null where they are"
    yield code("trials_to_distinguish"), "trials", trials, ""
    yield code("warnings"), "", "degenerate weights, precision out of reach: one line each", ""
    reasons = (
        "why records were lost and writes not taken: `{metric, reason, sentence, causes, events, weight, minutes, "
        "share, trial, seed}` by falling share of the metric; `trial` and `seed` of an example"
    )
    yield code("reasons"), "partition-minutes", reasons, ""
    for key, (_, unit, words) in KEYS.items():
        yield code(key), unit, words, ""
