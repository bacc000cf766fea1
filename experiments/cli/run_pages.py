"""The options `--html` and `--compare`: the page of a run, alone or beside another one.

A run is compared with the same nodes, steps and failures at the same times, in another generation, with a mutant of the
protocol, or with a rule of Kafka's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console

from experiments.cli.output import option
from experiments.support.errors import InputError
from protocol.errors import did_you_mean

if TYPE_CHECKING:
    from experiments.explorer.run import Run

Html = Annotated[Path | None, option("FILE", "Write the run as a page to explore in a browser.")]
_AGAIN = "Run it again in this generation, or with this mutant or rule of Kafka's, and show the first differences."
Compare = Annotated[str | None, option("WHAT", _AGAIN)]


@dataclass(frozen=True, slots=True)
class Variant:
    """How a run differs from the file: by generation, mutant or rules of Kafka's. `name` is for titles."""

    name: str
    generation: str | None = None
    mutant: str | None = None
    kafka_rules: tuple[str, ...] = ()


def variant_named(text: str, others: Iterable[str] = ()) -> Variant:
    """The variant that `--compare` names; `others` are names that the command takes besides. InputError for none."""
    from experiments.hunt.mutants.registry import all_mutants
    from experiments.support.fields import GENERATIONS
    from protocol.kafka_rules import KAFKA_RULES

    if text in GENERATIONS:
        return Variant(text, generation=text)
    if text in all_mutants():
        return Variant(f"mutant {text}", mutant=text)
    if text in KAFKA_RULES:
        return Variant(f"Kafka's rule {text}", kafka_rules=(text,))
    allowed = ", ".join([*others, *GENERATIONS, "a mutant of docs/mutants.md, or a rule of docs/kafka-findings.md"])
    meant = did_you_mean(text, (*GENERATIONS, *all_mutants(), *KAFKA_RULES))
    raise InputError("--compare", "", f"{text!r}{meant}", allowed)


class Exploration:
    """A run to explore, alone or beside `other`, and their first differences. Writes the page where `html` names a
    file; InputError where that fails. `compare` is what the user compares with.
    """

    def __init__(self, html: Path | None, compare: str | None, run: Run, other: Run | None) -> None:
        from experiments.explorer.difference import differences
        from experiments.explorer.page import write_page

        self.html, self.compare = html, compare
        self.differences = [] if other is None else differences(run, other)
        if html is not None:
            write_page(html, run, other, self.differences)


def document_of(shown: Exploration | None) -> dict[str, object]:
    """What `--html` and `--compare` add to the JSON document of a command."""
    if shown is None:
        return {}
    document: dict[str, object] = {} if shown.html is None else {"html": str(shown.html)}
    if shown.compare is not None:
        found = [difference.document() for difference in shown.differences]
        document |= {"compared_with": shown.compare, "first_differences": found}
    return document


def show(console: Console, shown: Exploration | None) -> None:
    if shown is None:
        return
    for difference in shown.differences:
        console.print(f"first different {difference.what}: {difference.text}", markup=False, soft_wrap=True)
    if shown.compare is not None and not shown.differences:
        console.print(f"no event differs from {shown.compare}, as far as both runs go", markup=False)
    if shown.html is not None:
        console.print(f"page: {shown.html}", markup=False)
