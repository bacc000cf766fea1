"""The folder of a campaign: what is written when, so that a killed driver loses nothing that was finished.

- `campaign.json` says which campaign it is, and is written once. A folder of another campaign, of another version of
  the format or of other code is refused: its plans could not be made again.
- `round.jsonl` has a line for each finished seed of the round under way, written when its result arrives. A driver that
  is killed leaves at most one incomplete line, the last, which is dropped; that seed runs again.
- `state.json` holds what all rounds up to the last complete one have come to. It is replaced when a round is complete,
  after the kept plans were written and before `round.jsonl` is emptied. Lines of rounds that it includes are ignored.
- `corpus/SEED.json` are the kept plans: timeline files without a violation (JSON is YAML), which `isray replay` reads.
- `findings/` has a timeline file for each finding, `curve.csv` a row for each round, `curve.svg` the chart of it.

One driver at a time: the folder is locked.
"""

from __future__ import annotations

import csv
import fcntl
import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import altair as alt
import vl_convert
from pydantic import Field

from experiments.hunt.campaign.rounds import Finding
from experiments.hunt.fuzz.plan import Plan, TimelineFile
from experiments.hunt.seeds import Counts, SeedResult
from experiments.support.atomic import TEMPORARY, write_text
from experiments.support.build import PACKAGES_FOLDER
from experiments.support.errors import InputError, shown
from experiments.support.fields import AsTuple, StrictModel
from experiments.support.yaml_input import read_text, validated

ROUND = 200
"""Seeds of a round, unless a campaign says otherwise: a minute of one core, so that workers wait little at its end."""
_PACKAGES = ("check", "engines", "faults", "hunt", "scenarios", "story", "support")
"""What the result of a plan depends on, beside `protocol`."""
_DRAWN = {"features": "features reached", "kept": "plans kept"}
_COLOURS = ["#0072B2", "#D55E00"]
"""Of Okabe and Ito, 2008."""
_Model = TypeVar("_Model", bound=StrictModel)


class Identity(StrictModel):
    """What makes a campaign: two with the same identity have the same plans. `code` is the digest of the sources."""

    format: Literal["isray-campaign"] = "isray-campaign"
    version: Literal[1] = 1
    code: str
    first_seed: int
    round_size: Annotated[int, Field(ge=1)] = ROUND
    generation: str | None = None
    mutant: str | None = None
    release: str | None = None


class CurvePoint(StrictModel):
    """A row of the coverage curve, after a round: `seconds` the campaign has run, over all its starts; `features` and
    `behaviours` (lines of the table of coverage) that were reached; plans that are kept.
    """

    round: int
    seeds: int
    events: int
    seconds: float
    features: int
    behaviours: int
    kept: int
    findings: int


class State(StrictModel):
    """What the first `rounds` rounds have come to. `kept` are the seeds of the kept plans, with the features that each
    was first to reach, in the order in which they were kept.
    """

    format: Literal["isray-campaign-state"] = "isray-campaign-state"
    version: Literal[1] = 1
    rounds: int = 0
    events: int = 0
    seconds: float = 0.0
    counts: Counts = ()
    hits: dict[str, int] = Field(default_factory=dict)
    kept: dict[str, Annotated[tuple[str, ...], AsTuple]] = Field(default_factory=dict)
    findings: dict[str, Finding] = Field(default_factory=dict)
    curve: Annotated[tuple[CurvePoint, ...], AsTuple] = ()


class Line(SeedResult):
    """The result of a seed in `round.jsonl`. `at_s`: how long the campaign had run when it arrived."""

    at_s: float


def code_digest() -> str:
    """A digest of the sources that the result of a plan depends on."""
    digest = blake2b(digest_size=8)
    for package in ("protocol", *(f"experiments/{name}" for name in _PACKAGES)):
        for path in sorted(path for form in ("*.py", "*.yaml") for path in (PACKAGES_FOLDER / package).rglob(form)):
            digest.update(f"{path.relative_to(PACKAGES_FOLDER)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


class CampaignFolder:
    """The files of a campaign; made by `open_campaign`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._journal = root / "round.jsonl"

    def read_state(self) -> State:
        """The state after the last complete round."""
        path = self.root / "state.json"
        return _read(path, State, "the state of a campaign of isray fuzz") if path.exists() else State()

    def write_state(self, state: State) -> None:
        """Replaces the state, and begins the next round."""
        write_text(self.root / "state.json", state.model_dump_json())
        self._journal.write_text("", encoding="utf-8")

    def read_round(self) -> list[Line]:
        """The finished seeds of the round under way; drops an incomplete last line."""
        if not self._journal.exists():
            return []
        text = read_text(self._journal, "the results of a round of isray fuzz", "JSON lines")
        complete, newline, _ = text.rpartition("\n")
        if complete + newline != text:
            write_text(self._journal, complete + newline)
        lines = enumerate(complete.splitlines(), 1)
        return [_parsed(line, f"{self._journal}, line {number}", Line) for number, line in lines]

    def append(self, line: Line) -> None:
        with self._journal.open("a", encoding="utf-8") as stream:
            stream.write(line.model_dump_json(exclude_none=True) + "\n")

    def keep(self, plan: Plan, trace_hash: str) -> None:
        folder = self.root / "corpus"
        folder.mkdir(exist_ok=True)
        file = TimelineFile(trace_hash=trace_hash, before=plan.sizes, after=plan.sizes, plan=plan)
        write_text(folder / f"{plan.seed}.json", file.model_dump_json(exclude_none=True))

    def kept(self, seed: int) -> Plan:
        path = self.root / "corpus" / f"{seed}.json"
        return _read(path, TimelineFile, "a kept plan of a campaign of isray fuzz").plan


@contextmanager
def open_campaign(root: Path, wanted: Identity) -> Iterator[CampaignFolder]:
    """The folder of a campaign for the block, locked; a new or empty one becomes its folder. InputError, and nothing is
    written, where it is the folder of another campaign or holds something else.
    """
    identity = root / "campaign.json"
    if identity.exists():
        _check_same(identity, wanted)
    elif names := {path.name for path in root.iterdir()} if root.exists() else set():
        # A start that was killed before it wrote `campaign.json` may have left a lock and a temporary file.
        foreign = {name for name in names if name != ".lock" and not name.startswith(TEMPORARY)}
        if foreign:
            found = f"files but no campaign.json ({min(foreign)})"
            raise InputError(str(root), "", found, "a new or empty folder, or the folder of a campaign")
    root.mkdir(parents=True, exist_ok=True)
    with (root / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InputError(str(root), "", "another command that runs this campaign", "one at a time") from error
        if not identity.exists():
            write_text(identity, wanted.model_dump_json(indent=1) + "\n")
        yield CampaignFolder(root)


def _check_same(path: Path, wanted: Identity) -> None:
    present = _read(path, Identity, "a campaign of isray fuzz")
    for name in Identity.model_fields:
        values = getattr(present, name), getattr(wanted, name)
        if values[0] != values[1]:
            found, expected = ("none" if value is None else shown(value, as_json=True) for value in values)
            raise InputError(str(path), name, found, f"{expected} as in this start, or another --campaign folder")


def _read(path: Path, kind: type[_Model], what: str) -> _Model:
    return _parsed(read_text(path, what, "JSON"), str(path), kind)


def _parsed(text: str, source: str, kind: type[_Model]) -> _Model:
    try:
        raw = json.loads(text)
    except ValueError as error:
        raise InputError(source, "", "text that is not JSON", "what isray fuzz has written") from error
    return validated(kind, raw, source, as_json=True)


def curve_table(curve: Sequence[CurvePoint]) -> str:
    """The curve as CSV, a row for each round."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(CurvePoint.model_fields), lineterminator="\n")
    writer.writeheader()
    writer.writerows(point.model_dump() for point in curve)
    return text.getvalue()


def curve_drawing(curve: Sequence[CurvePoint]) -> str:
    rows = [{"seeds": 0, "what": name, "count": 0} for name in _DRAWN.values()]
    rows += [
        {"seeds": point.seeds, "what": name, "count": getattr(point, field)}
        for point in curve
        for field, name in _DRAWN.items()
    ]
    colours = alt.Scale(domain=list(_DRAWN.values()), range=_COLOURS)
    chart = alt.Chart(alt.InlineData(rows)).mark_line(interpolate="monotone")
    chart = chart.encode(
        x=alt.X("seeds:Q", title="seeds"),
        y=alt.Y("count:Q", title=None),
        color=alt.Color("what:N", scale=colours, legend=alt.Legend(title=None, orient="bottom")),
    )
    return vl_convert.vegalite_to_svg(chart.properties(width=640, height=280, background="white").to_dict())
