"""`isray study report`: `report.html`, from `study.yaml` and `gold/` alone.

The file stands alone: style, scripts and drawings are in it, and it loads nothing; without JavaScript it has the same
content. The same input gives the same bytes. Trials that are missing for another reason than chance may bias the
answer: the page lists below it the damaged files that the analysis has put into quarantine.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment
from markupsafe import Markup, escape
from pydantic import TypeAdapter, ValidationError

from experiments.studies.design.model import CellParameters
from experiments.studies.design.study import StudyPlan, metrics_of
from experiments.studies.estimation.estimates import CellEstimates, read_cells
from experiments.studies.estimation.pairs import Difference
from experiments.studies.estimation.times import Quantiles, Times, read_measured, read_times
from experiments.studies.estimation.why import Attribution, read_attributions
from experiments.studies.failures.words import shared_assumptions, split_common
from experiments.studies.report import kafka, tradeoffs, verdict, why, words
from experiments.studies.report.charts.forest import differences_chart, estimates_chart
from experiments.studies.report.charts.library import library
from experiments.studies.report.charts.sweeps import curves, heat_maps
from experiments.studies.report.charts.theme import Chart
from experiments.studies.report.charts.times import times_charts
from experiments.studies.report.charts.tradeoff import tradeoff_chart
from experiments.studies.report.effects import effects
from experiments.studies.report.example import Example, example_of
from experiments.studies.report.failure_rates import beside_published, in_comparison
from experiments.studies.report.partial import Partial, partial
from experiments.studies.report.settings import Group, groups
from experiments.studies.report.targets import target_name, target_rows
from experiments.studies.sweeps.output import StudyRecord, read_record
from experiments.studies.sweeps.staging import LOSS_PAGE, REPORT
from experiments.studies.sweeps.storage import Location, store_at
from experiments.studies.trace.metrics import (
    BY_NAME,
    CAUSES,
    CLUSTER_METRICS,
    FRACTION,
    FRACTIONS,
    INCIDENTS,
    METRICS,
    RATES,
    Metric,
    of_topic,
)
from experiments.studies.trace.schema import YEAR_MS
from experiments.support.atomic import write_text
from experiments.support.errors import InputError
from experiments.support.templates import templates

_NAME = re.compile(r"(?:.*/)?((?:trace|trials)/_?cell-([0-9a-f]+)-[^/]+)")


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A file that is left out. `file`: its name within the study; `setting`: the one whose trials it has; `first`,
    `last`: the numbers of these trials; `reason`: what is wrong with it."""

    file: str
    setting: str
    first: int
    last: int
    reason: str

    @property
    def trials(self) -> int:
        """How many trials it has."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class _Entry:
    """An object of `gold/quarantine.json`; `trials`: the first one, and the one after the last."""

    file: str
    reason: str
    trials: tuple[int, int]


_ENTRIES = TypeAdapter(list[_Entry])


def read_left_out(out: Path, settings: Mapping[str, str]) -> list[LeftOut]:
    """The files that `gold/quarantine.json` of the study in `out` lists. `settings`: the names of the settings by the
    digests of their cells. Raises InputError if the file is missing or damaged."""
    path = out / "gold/quarantine.json"
    try:
        entries = _ENTRIES.validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        found = error.strerror if isinstance(error, OSError) else "a damaged file"
        raise InputError(str(path), "", found, "what `isray study analyze` writes; run it again") from error
    left_out = []
    for entry in entries:
        name, (first, stop) = _NAME.fullmatch(entry.file), entry.trials
        file, digest = (name[1], name[2]) if name else (entry.file, "")
        left_out.append(LeftOut(file, settings.get(digest, ""), first, stop - 1, entry.reason))
    return left_out


PAGE = Path(__file__).resolve().parent / "page"
GROUPS_AT_MOST = 6
"""Groups with charts of their own; the tables have all."""
BEYOND_THE_MODEL = 1e-6
"""Losses per partition-year below which what the model leaves out loses more records than its failures."""
VARIANT = "sweep:\n  preset: [cloud-vm-5, hdfs-2010, dean-first-year, ford-2010]   # docs/failure-models.md\n"


def write_report(out: Path, source: Location | None = None) -> Path:
    """Writes `out/report.html`, and `out/loss.html` if the study has a loss to show; returns the path of the report.
    `source`: where the trials are, if not in `out`. Raises InputError if `out` holds no analysed study."""
    record = read_record(out)
    path = out / REPORT
    cells = read_cells(out, record.study.cells, metrics_of(record.study))
    trials = store_at(out if source is None else source)
    found = groups(record.study, cells)
    names = {record.cells[setting.index]: setting.full_name for group in found for setting in group.settings}
    left_out = read_left_out(out, names)
    damaged = Counter[str]()
    for each in left_out:
        damaged[each.setting] += each.trials
    full_names = [names[digest] for digest in record.cells]
    extras = PageExtras(
        times=read_times(out),
        measured=read_measured(out),
        left_out=left_out,
        partial=partial(record.study, full_names, [cell.trials for cell in cells], damaged),
        example=example_of(record, found, trials, out / LOSS_PAGE),
        why=read_attributions(out),
    )
    write_text(path, render(record, cells, extras))
    return path


@dataclass(frozen=True, slots=True)
class PageExtras:
    """What a page shows besides the estimates of the cells. By cell: `times`, of failovers and the like; `measured`,
    by clients and operators. `left_out`: files that the numbers are computed without; `partial`: settings that lack
    trials; `example`: a loss; `why`: what losses and outages are attributed to."""

    times: Sequence[Mapping[str, Times]] = ()
    measured: Sequence[Mapping[str, Quantiles | float]] = ()
    left_out: Sequence[LeftOut] = ()
    partial: Sequence[Partial] = ()
    example: Example | None = None
    why: Sequence[Sequence[Attribution]] = ()


NOTHING = PageExtras()


def render(record: StudyRecord, cells: Sequence[CellEstimates], extras: PageExtras = NOTHING) -> str:
    """The page as text; `cells` are the numbers of the study's cells, in their order."""
    study = record.study
    found = groups(study, cells)
    drawn = _charts(study, found) | {"times_charts": list(times_charts(found, extras.times)) if extras.times else []}
    question = "How often does a partition lose acknowledged records, and how long is it unavailable, depending on "
    plots = [plot for place in drawn.values() for plot in (place if isinstance(place, list) else [place])]
    return _environment().get_template("report.html.j2").render(
        **_answers(study, found),
        **_assumptions(study, found),
        **_tables(study, found),
        **drawn,
        **_measured(study, cells, extras.measured),
        study=study,
        example=extras.example,
        why=why.blocks(study, extras.why),
        left_out=extras.left_out,
        partial=extras.partial,
        listed_at_most=10,
        question=study.question or f"{question}{' and '.join(study.cells[0].swept) or 'this setting'}?",
        versions=record.versions,
        source=study.text,
        specs=[{"name": plot.name, "spec": plot.spec, "scaled": plot.scaled} for plot in plots],
        style=Markup((PAGE / "report.css").read_text(encoding="utf-8")),
        script=Markup((PAGE / "report.js").read_text(encoding="utf-8")),
        library=Markup(library()),
    )  # fmt: skip


def _answers(study: StudyPlan, found: Sequence[Group]) -> dict[str, object]:
    best: dict[str, tuple[CellParameters, list[str]]] = {}
    for group in found:
        if group.advised is not None:
            best.setdefault(group.advised.name, (group.advised.parameters, []))[1].append(group.name)
    return {
        "verdict": verdict.judge(study, found),
        "cautions": verdict.cautions(study),
        "groups": [(group, verdict.judge_group(study, group)) for group in found],
        "swept_assumptions": list(found[0].settings[0].assumed),
        "recommended": [
            (name, "" if len(among) == len(found) else words.listed(among, "or"), kafka.commands(parameters))
            for name, (parameters, among) in best.items()
        ],
        "configs": kafka.configs([cell.parameters for cell in study.cells]),
        "variant": VARIANT,
    }


def _assumptions(study: StudyPlan, found: Sequence[Group]) -> dict[str, object]:
    function = None if study.functions is None else study.functions.failure_model
    each = [shared_assumptions({s.full_name: s.parameters for s in group.settings}, function) for group in found]
    common, own = split_common([(group.name, shared) for group, (shared, _) in zip(found, each, strict=True)])
    rates = [(group.name or "this study", group.reference.parameters) for group in found] if function is None else []
    return {
        "assumed": common,
        "assumed_of_some": own + [row for _, rows in each for row in rows],
        "failure_rates": beside_published(rates) if rates else [],
        "harsh": in_comparison(rates),
        "parameters": words.parameter_rows([cell.parameters for cell in study.cells]),
        "on_processes": all(cell.parameters.engine == "ray" for cell in study.cells),
    }


def _tables(study: StudyPlan, found: Sequence[Group]) -> dict[str, object]:
    settings = sorted((setting for group in found for setting in group.settings), key=lambda setting: setting.index)
    # Where acks is always all, acks=1 loses nothing and acknowledged losses are those.
    has_other_acks = any(cell.parameters.acks != "all" for cell in study.cells)
    repeated = set() if has_other_acks else {"acks_1_loss_rate", "acknowledged_loss_rate"} - {study.objective}
    found_metrics = metrics_of(study)
    topics = [each for each in found_metrics if each.name in map(of_topic, study.topics)]
    metrics = [each for each in found_metrics if each.name not in repeated and each not in (*CAUSES, *topics)]
    rows = [row for group in found for row in tradeoffs.trade_offs(study, group)]
    return {
        "settings": settings,
        "target_rows": target_rows(study, found),
        "target_names": [target_name(each) for each in settings[0].estimates.targets],
        "level": settings[0].estimates.targets[0].level if study.targets else 0.0,
        "metrics": metrics,
        "causes": CAUSES,
        "fractions": {metric.name for metric in metrics if metric.estimator is FRACTION},
        "scaled": set(RATES),
        "trade_offs": rows,
        "effects": [(group.name, effects(study, group)) for group in found if len(group.settings) > 1],
        "references": list(dict.fromkeys(group.reference.name for group in found if group.others)),
        "gains": sorted(row.gain for row in rows if row.gain is not None),
        "noun": BY_NAME[study.objective].noun,
        "has_tiny_rates": study.objective in RATES
        and any(0.0 < setting.estimates.value(study.objective) < BEYOND_THE_MODEL for setting in settings),
        "has_immediate_catch_up": all(cell.parameters.catch_up is None for cell in study.cells),
        "objective_is_rate": study.objective in RATES,
        **_whole_cluster(study, topics),
        "warnings": words.warnings({setting.full_name: setting.estimates.warnings for setting in settings}),
        "cluster_sizes": (100, 1_000, 10_000, 100_000),
    }


def _whole_cluster(study: StudyPlan, topics: Sequence[Metric]) -> dict[str, object]:
    """What the page says of whole clusters."""
    clusters = [cell.parameters.cluster for cell in study.cells]
    names = {topic for cluster in clusters if cluster is not None for topic in cluster.topics}
    return {
        "cluster_metrics": CLUSTER_METRICS,
        "topic_metrics": topics,
        "topics_left_out": len(names) - len(topics),
        "has_short_trials": any(cell.parameters.duration_ms < YEAR_MS for cell in study.cells),
        "objective_is_incidents": study.objective == INCIDENTS,
        "fractions_of_partitions": set(FRACTIONS),
        "has_other_acks": any(each.acks != "all" for cluster in clusters if cluster for each in cluster.classes),
    }


def _measured(
    study: StudyPlan, cells: Sequence[CellEstimates], measured: Sequence[Mapping[str, Quantiles | float]]
) -> dict[str, object]:
    """What was measured in the settings with plain trials, whose times count alike, and the keys that occur."""
    rows = [
        (words.cell_name(asked.swept), found)
        for asked, cell, found in zip(study.cells, cells, measured or [{}] * len(cells), strict=True)
        if found and cell.estimator == "plain"
    ]
    return {"measured": rows, "measured_keys": {key for _, found in rows for key in found}}


def _charts(study: StudyPlan, found: Sequence[Group]) -> dict[str, Chart | list[Chart]]:
    objective = BY_NAME[study.objective]
    availability = (metric for metric in METRICS if metric.name in tradeoffs.AVAILABILITY and metric != objective)
    compared, groups = [objective, *availability], list(enumerate(found[:GROUPS_AT_MOST]))
    differences = (differences_chart(metric, group, index) for index, group in groups for metric in compared)
    return {
        "objective_chart": estimates_chart(objective, found),
        "tradeoff_charts": list(filter(None, (tradeoff_chart(group, index) for index, group in groups))),
        "difference_charts": list(filter(None, differences)),
        "maps": list(heat_maps(objective, found)),
        "curves": list(curves(objective, found)),
    }


def _environment() -> Environment:
    environment = templates(PAGE)
    environment.tests["rate_part"] = lambda part: isinstance(part, words.Rate)
    environment.filters |= {
        "number": words.number,
        "signed_number": words.signed_number,
        "time_difference": _time_difference,
        "with_code": lambda text: Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text)))),
        "interval_in_numbers": lambda value: words.interval(value, words.number),
        "time_interval": words.time_interval,
        "minutes": lambda value: _unbroken(words.minutes(value)),
        "milliseconds": lambda value: _unbroken(words.milliseconds(value)),
    }
    return environment


def _time_difference(found: Difference) -> tuple[str, str]:
    """A difference of shares of time as time per year, and its limits."""
    value, limits = words.times(found.estimate, found.ci_low, found.ci_high, signed=True)
    return _unbroken(value), limits


def _unbroken(text: str) -> str:
    """A number and its unit, kept on one line."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")
