"""`isray what-if`: which topics refuse writes, lose their leader or may lose records after given failures.

Exit code 1 with `--require-writable` where a partition refuses writes after any of the failures, or before them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from experiments.cli.output import Json, fail_if, flag, option, print_result, table_of, wide_console
from experiments.cli.parse import release_of
from experiments.support.errors import InputError
from experiments.support.fields import GENERATIONS
from protocol.config import INT_MAX

if TYPE_CHECKING:
    from experiments.studies.layouts.layout import Layout
    from experiments.studies.whatif.answers import Answer, Question

SHOWN_ROWS = 40
DESCRIBE = "Output of kafka-topics.sh --describe, a reassignment in JSON, or a file of isray cluster import."
FAIL = (
    "What fails: broker:3, broker:3,5 (in this order), rack:b, rack:b,c (at once), any 1, any 2, any 3, "
    "any rack, any 2 racks, rolling. Several times."
)


def what_if(
    describe: Annotated[Path, option("FILE", DESCRIBE)],
    racks: Annotated[Path | None, option("FILE", "The rack of each broker: lines broker,rack, or a mapping.")] = None,
    fail: Annotated[list[str] | None, option("SPEC", FAIL)] = None,
    order: Annotated[str | None, option("ID,...", "The order of a rolling restart; by id without it.")] = None,
    min_isr: Annotated[
        int, option("N", "min.insync.replicas of topics that the file does not give one.", min=1, max=INT_MAX)
    ] = 1,
    unclean: Annotated[
        bool, flag("--unclean-leader-election", "Enabled for topics of which the file does not say.")
    ] = False,
    generation: Annotated[str, option("NAME", "The generation of the protocol.")] = "kip-966-elr",
    kafka_release: Annotated[str | None, option("RELEASE", "Decide as this release of Kafka does.")] = None,
    healthy: Annotated[
        bool, flag("--healthy", "Begin with all replicas in sync, whatever the file describes.")
    ] = False,
    require_writable: Annotated[
        bool, flag("--require-writable", "Exit with 1 where any partition refuses writes.")
    ] = False,
    html: Annotated[Path | None, option("FILE", "Write the answers as a page, too.")] = None,
    as_json: Json = False,
) -> None:
    """Ask what becomes of every topic of a cluster after failures, without rates: the controller's own decisions."""
    from experiments.studies.layouts.layout import with_racks
    from experiments.studies.layouts.reader import read_layout, read_racks
    from experiments.studies.whatif.answers import Question, Rules
    from experiments.studies.whatif.failures import default_specs, failures_of
    from protocol.config import ClusterConfig
    from protocol.features import LOG_GENERATIONS, Generation

    if generation not in {each.value for each in LOG_GENERATIONS}:
        allowed = ", ".join(name for name in GENERATIONS if Generation(name) in LOG_GENERATIONS)
        raise InputError("--generation", "", generation, f"one of {allowed}")
    given = None if racks is None else read_racks(racks)
    layout = read_layout(describe, given)
    if given is not None:
        layout = with_racks(layout, given, str(racks))
    failures = failures_of(fail or default_specs(layout), layout, order)
    release = release_of(kafka_release, Generation(generation))
    cluster = ClusterConfig.of(Generation(generation), kafka_release=release)
    question = Question(layout, Rules(cluster, min_isr, unclean), healthy)
    answers = list(question.answers(failures))
    if html is not None:
        from experiments.studies.whatif.page import write_page

        write_page(html, question, answers, _rules(layout, generation, min_isr, unclean))
    print_result(as_json, [answer.document() for answer in answers], _show, question, answers)
    fail_if(require_writable and (question.before().stopped or any(answer.stopped for answer in answers)))


def _rules(layout: Layout, generation: str, min_isr: int, unclean: bool) -> str:
    silent = sum(topic.min_insync_replicas is None for topic in layout.topics)
    text = f"Generation {generation}. "
    if silent:
        text += f"min.insync.replicas of {silent} topics that the file does not give one: {min_isr}. "
    return f"{text}Unclean leader election where the file does not say: {'enabled' if unclean else 'disabled'}."


def _show(question: Question, answers: list[Answer]) -> None:
    from experiments.studies.whatif.summary import COLUMNS, LEFT_OUT, METHOD, opening, rows, sentences

    console: Console = wide_console()
    found = rows(answers)
    if found:
        cells = [(row.failure, row.stopped, str(row.refused), str(row.leaderless), row.may_lose) for row in found]
        console.print(table_of(COLUMNS, [tuple(map(escape, row)) for row in cells[:SHOWN_ROWS]], lines=True))
        if len(found) > SHOWN_ROWS:
            console.print(f"and {len(found) - SHOWN_ROWS} failures that do less; --json and --html have more")
    for sentence in (opening(question), *sentences(answers, question.layout), METHOD, LEFT_OUT):
        typer.echo(sentence)
