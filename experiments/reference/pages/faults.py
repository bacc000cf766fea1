"""The kinds of faults, from their classes in `experiments.faults.kinds`."""

from __future__ import annotations

from experiments.faults.kinds import FAULT_KINDS
from experiments.faults.schema import Fault
from experiments.reference.markdown import code, field_table, first_paragraph, sections

TITLE = "Faults"
SUMMARY = "every kind of fault in timeline files and in the `fault` step of a scenario"
_TIMES = ("at_ms", "duration_ms", "kind")


def page() -> str:
    return sections(
        "A fault begins at a time, lasts for a duration and is then healed. It is written in the timeline files of "
        "`isray fuzz` (a list of mappings with `kind`, `at_ms` and `duration_ms`, both in ms of virtual time, and the "
        "fields below), and in the [`fault` step](scenario-steps.md) of a scenario (with `duration: 5s` instead of the "
        "two times). Nodes are ids: brokers 0 to n-1, controllers from 1000, the unclean recovery manager 2000, the "
        "client 3000. [How to add a kind](../contributing/a-fault.md).",
        *(_section(kind, model) for kind, model in FAULT_KINDS.items()),
    )


def _section(kind: str, model: type[Fault]) -> str:
    return sections(
        f"## {code(kind)}",
        first_paragraph(model.__doc__),
        "" if model.in_swarm else "The plans that `isray fuzz` draws do not contain it.",
        field_table(model, _TIMES),
    )
