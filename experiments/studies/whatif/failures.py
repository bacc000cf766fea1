"""The failures that a question names: `broker:3`, `broker:3,5`, `rack:b`, `rack:b,c`, `any 1`, `any 2`,
`any 3`, `any rack`, `any 2 racks`, `rolling`.

`broker:3,5` fails one broker after the other, in this order. A rack fails at once, and so do two: the sessions of their
brokers then expire in any order, and the worst of these counts. `any 2` is every pair of brokers, one after the other:
both orders are asked, and where they differ both are answered. Two brokers that fail one after the other with writes
between lose whatever they lose at once, since the writes only leave more replicas behind. `any 3` is every three
brokers, one after the other: the worst order counts for each partition. `rolling` stops and starts the brokers one by
one, each when the one before is in sync again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Literal

from experiments.studies.layouts.layout import Brokers, Layout
from experiments.studies.whatif.triples import MOST_TRIPLES, is_feasible
from experiments.support.errors import InputError, shown

Kind = Literal["broker", "brokers", "pair", "three", "rack", "racks", "rolling"]
SPECS = (
    "broker:ID, broker:ID,ID (in this order), rack:NAME, rack:NAME,NAME (at once), any 1, any 2, any 3, any rack, "
    "any 2 racks, rolling"
)


@dataclass(frozen=True, slots=True)
class Failure:
    """Brokers that fail in this order; `at_once` those of racks. `three` names all, of which every three fail;
    `rolling` names all in the order of the restarts."""

    kind: Kind
    name: str
    brokers: Brokers
    at_once: bool = False


def default_specs(layout: Layout) -> list[str]:
    """What is asked where nothing is named: each broker, each rack where there are racks, a rolling restart."""
    return ["any 1", *(["any rack"] if layout.racks else []), "rolling"]


def failures_of(specs: Sequence[str], layout: Layout, order: str | None) -> list[Failure]:
    """The failures of all specs, each once; `order` is that of a rolling restart, by id without it. InputError for a
    spec that is none, an unknown broker or rack, and an order that does not name each broker once."""
    restarts = _order(order, layout)
    if order is not None and "rolling" not in specs:
        raise InputError("--order", "", "an order and no rolling restart", "--fail rolling beside it")
    return list(dict.fromkeys(failure for spec in specs for failure in _parsed(spec, layout, restarts)))


def _parsed(spec: str, layout: Layout, restarts: Brokers) -> Iterator[Failure]:
    kind, separator, rest = spec.partition(":")
    names = sorted(set(layout.racks.values()))
    if spec == "any 1":
        yield from (Failure("broker", f"broker {broker}", (broker,)) for broker in layout.brokers)
    elif spec == "any 2":
        yield from (Failure("pair", f"brokers {a}, {b}", (a, b)) for a, b in combinations(layout.brokers, 2))
    elif spec == "any 3":
        if not is_feasible(layout.brokers):
            count, most = (
                comb(len(layout.brokers), 3),
                f"at most {MOST_TRIPLES:,}: name those that matter by broker:ID,ID,ID",
            )
            raise InputError("--fail", "", f"any 3 of {len(layout.brokers)} brokers, {count:,} sets of three", most)
        yield Failure("three", "any three brokers", layout.brokers)
    elif spec == "any 2 racks" and len(names) > 1:
        yield from (_racks(pair, layout) for pair in combinations(names, 2))
    elif spec == "any rack" and names:
        yield from (_racks([name], layout) for name in names)
    elif spec == "rolling":
        yield Failure("rolling", "rolling restart", restarts)
    elif kind == "rack" and separator:
        yield _racks([rest] if rest in names else rest.split(","), layout)
    elif kind == "broker" and separator:
        found = _ids("--fail", rest, layout)
        yield Failure("broker" if len(found) == 1 else "brokers", f"broker {', '.join(map(str, found))}", found)
    else:
        needs = " with --racks" if spec in ("any rack", "any 2 racks") else ""
        raise InputError("--fail", "", shown(spec), f"{SPECS}{needs}")


def _racks(failing: Sequence[str], layout: Layout) -> Failure:
    names = sorted(set(layout.racks.values()))
    unknown = next((name for name in failing if name not in names), None)
    if unknown is not None:
        allowed = f"one of {', '.join(names)}" if names else "a rack, where --racks or the layout names any"
        raise InputError("--fail", "", f"rack {shown(unknown)}", allowed)
    brokers = tuple(dict.fromkeys(broker for name in failing for broker in layout.brokers_in(name)))
    if len(failing) == 1:
        return Failure("rack", f"rack {failing[0]}", brokers, at_once=True)
    return Failure("racks", f"racks {', '.join(failing)}", brokers, at_once=True)


def _order(order: str | None, layout: Layout) -> Brokers:
    if order is None:
        return layout.brokers
    found = _ids("--order", order, layout)
    missing = sorted({*layout.brokers} - {*found})
    if missing:
        raise InputError("--order", "", f"no broker {missing[0]}", "each broker of the layout once")
    return found


def _ids(option: str, text: str, layout: Layout) -> Brokers:
    parts = [part.strip() for part in text.split(",")]
    known = {str(broker): broker for broker in layout.brokers}
    unknown = [part for part in parts if part not in known]
    if unknown or len(set(parts)) < len(parts):
        found = f"broker {shown(unknown[0])}" if unknown else f"a broker twice in {shown(text)}"
        raise InputError(option, "", found, f"brokers of the layout, each once: {_short(layout.brokers)}")
    return tuple(known[part] for part in parts)


def _short(ids: Brokers) -> str:
    return ", ".join(map(str, ids)) if len(ids) <= 12 else f"{', '.join(map(str, ids[:12]))}, ... {ids[-1]}"
