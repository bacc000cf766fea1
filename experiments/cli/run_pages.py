"""The options `--html` and `--compare`: the page of a run, alone or beside another one.

A run is compared with the same nodes, steps and failures at the same times, in another generation, with a mutant of the
protocol, with a rule of Kafka's, or under the rules of another release of Kafka's.
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
_AGAIN = "Run it again in this generation or release, or with this mutant or rule of Kafka's; show what differs first."
Compare = Annotated[str | None, option("WHAT", _AGAIN)]


@dataclass(frozen=True, slots=True)
class Variant:
    """How a run differs from the file: by generation, mutant, rules or release of Kafka's. `name` is for titles."""

    name: str
    generation: str | None = None
    mutant: str | None = None
    kafka_rules: tuple[str, ...] = ()
    kafka_release: str | None = None


def variant_named(text: str, others: Iterable[str] = ()) -> Variant:
    """The variant that `--compare` names; `others` are names that the command takes besides. InputError for none."""
    from experiments.hunt.mutants.registry import all_mutants
    from experiments.support.fields import GENERATIONS, RELEASES
    from protocol.kafka_rules import KAFKA_RULES

    if text in GENERATIONS:
        return Variant(text, generation=text)
    if text in all_mutants():
        return Variant(f"mutant {text}", mutant=text)
    if text in KAFKA_RULES:
        return Variant(f"Kafka's rule {text}", kafka_rules=(text,))
    if text in RELEASES:
        return Variant(f"Kafka {text}", kafka_release=text)
    named = (*others, *GENERATIONS, *RELEASES)
    allowed = ", ".join([*named, "a mutant of docs/mutants.md, or a rule of docs/kafka-findings.md"])
    meant = did_you_mean(text, (*GENERATIONS, *all_mutants(), *KAFKA_RULES))
    raise InputError("--compare", "", f"{text!r}{meant}", allowed)


def expect_page(html: Path | None) -> None:
    """InputError where the page of a run that acts on a cluster, or takes long, could not be written after it."""
    from experiments.check.recording import expect_writable

    if html is not None and html.is_dir():
        raise InputError("--html", "", f"{html}, a folder", "a file that can be written")
    if html is not None:
        expect_writable(html.parent, "--html")


class Exploration:
    """What `--html` and `--compare` add to the output of a command: keys of the JSON document, and lines; nothing
    without a run. Writes the page of the run, alone or beside `other`, where `html` names a file; InputError where that
    fails. `compare` is what the user compares with.
    """

    def __init__(self, html: Path | None, compare: str | None, run: Run | None, other: Run | None) -> None:
        self.document: dict[str, object] = {}
        self._lines: list[str] = []
        if run is None:
            return
        from experiments.explorer.difference import differences
        from experiments.explorer.page import write_page

        found = [] if other is None else differences(run, other)
        self._lines += [f"first different {each.what}: {each.text}" for each in found]
        if html is not None:
            write_page(html, run, other, found)
            self.document["html"] = str(html)
        if compare is not None:
            self.document |= {"compared_with": compare, "first_differences": [each.document() for each in found]}
            self._lines += [] if found else [f"no event differs from {compare}, as far as both runs go"]
        self._lines += [] if html is None else [f"page: {html}"]

    def show(self, console: Console) -> None:
        for line in self._lines:
            console.print(line, markup=False, soft_wrap=True)
