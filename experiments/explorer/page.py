"""The explorer's page: one self-contained HTML file that loads nothing.

The table of the story is in the file as HTML, so that a browser without JavaScript shows it. The scripts are plain
files beside this one, which are inlined in the order of `SCRIPTS` into one scope.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from experiments.explorer.columns import columns, packed
from experiments.explorer.difference import Difference
from experiments.explorer.run import Run, StoryRow
from experiments.support.errors import InputError
from experiments.support.templates import templates
from protocol.ids import node_name

FOLDER = Path(__file__).parent
SCRIPTS = ("data.js", "causality.js", "scale.js", "states.js", "shapes.js", "draw.js", "panel.js", "app.js")
MAX_STORY_ROWS = 5_000
"""Lines of the story in the file; of a longer story the last ones, where runs end in what they show."""
CHUNK = 100


def write_page(path: Path, run: Run, other: Run | None = None, found: Sequence[Difference] = ()) -> None:
    """Writes the page of one run, or of two with their first differences. InputError where the file cannot be
    written.
    """
    text = render_page(run, other, found)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError("--html", "", f"{path}: {error.strerror}", "a file that can be written") from error


def render_page(run: Run, other: Run | None = None, found: Sequence[Difference] = ()) -> str:
    """The page as HTML; `found` are the differences to mark."""
    environment = templates(FOLDER)
    environment.filters |= {"clock": _clock, "node_name": node_name}
    runs = [run] if other is None else [run, other]
    document = {"runs": [columns(each) for each in runs], "differences": [each.document() for each in found]}
    return environment.get_template("page.html.j2").render(
        runs=runs,
        stories=[_chunks(each.story) for each in runs],
        left_out=[max(0, len(each.story) - MAX_STORY_ROWS) for each in runs],
        differences=found,
        data=Markup(packed(document)),
        style=Markup((FOLDER / "page.css").read_text(encoding="utf-8")),
        script=Markup("\n".join((FOLDER / name).read_text(encoding="utf-8") for name in SCRIPTS)),
    )


def _clock(time_ms: int) -> str:
    """A time as the diagram writes it: `12.345 s`, from an hour on `3 d 04:05:06.789`."""
    if time_ms < 3_600_000:
        return f"{time_ms / 1000:.3f} s"
    rest, hours = time_ms % 3_600_000, time_ms // 3_600_000
    clock = f"{hours % 24:02}:{rest // 60_000:02}:{rest % 60_000 // 1000:02}.{rest % 1000:03}"
    return f"{hours // 24} d {clock}" if hours >= 24 else clock


def _chunks(story: Sequence[StoryRow]) -> list[list[StoryRow]]:
    """The last rows of a story, in pieces that a browser lays out one by one."""
    rows = list(story[-MAX_STORY_ROWS:])
    return [rows[begin : begin + CHUNK] for begin in range(0, len(rows), CHUNK)]
