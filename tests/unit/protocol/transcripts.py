"""Golden transcripts: files of cases, each a sequence of commands and what they print (as in etcd/raft's testdata).

    # Lines before the first case are its prologue, and that of every other case of the file.
    cluster 0-2

    == a fenced leader is replaced by another member of the ISR [E29 E31]
    each generation: kip-966-elr | kip-966
    topic; fence 0 => t-0 leader=1 isr=1,2 epochs=1/1 | fenced 0

A case has a title, the items of the checklist that it shows, and commands, one or several (`;`) per line. Below them is
what they print, indented; a single line stands behind them (`=>`) where there is room. Lines that begin with `#` say
why. `each` plays a case once per value; `{generation}` stands for the value. `given` before a command keeps it from
printing. Which other commands there are, a `Script` says: one or more per folder of tests.

`pytest --rewrite-traces` rewrites what cases print that fail, for the first value where there are several. Read the
difference before it is committed.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

INDENT, ARROW = "    ", " => "
WIDTH = 120
_TITLE = re.compile(r"== (?P<title>[^\[]+?)(?: \[(?P<items>[^\]]+)\])?")
_EACH = re.compile(r"each (?P<name>\w+): (?P<values>.+)")


@dataclass(frozen=True, slots=True)
class Case:
    """A case with one choice of values: its file, its title, and its lines in the file, without the title."""

    path: Path
    title: str
    items: tuple[str, ...]
    prologue: tuple[str, ...]
    lines: tuple[str, ...]
    values: Mapping[str, str]
    is_first: bool

    @property
    def name(self) -> str:
        return ", ".join([f"{self.path.stem}: {self.title}", *self.values.values()])

    def filled(self, line: str) -> str:
        for name, value in self.values.items():
            line = line.replace(f"{{{name}}}", value)
        return line


class Script:
    """Carries out commands: `fence 0` calls `do_fence`, which returns the lines that it prints."""

    def run(self, text: str) -> list[str]:
        command = Command(text)
        carry_out = getattr(self, f"do_{command.name.replace('-', '_')}", None)
        if carry_out is None:
            raise ValueError(f"there is no command {command.name!r}")
        printed = list(carry_out(command) or ())
        if command.left:
            raise ValueError(f"{command.name} does not take {' '.join(command.left)}")
        return printed

    def do_given(self, command: Command) -> None:
        """`given COMMAND`: what it prints is shown by another case."""
        self.run(shlex.join(command.words()))


class Command:
    """A command and its arguments. Those that a script asks for are taken; `left` are the others."""

    def __init__(self, text: str) -> None:
        self.name, *self.left = shlex.split(text)

    def positional(self) -> list[str]:
        """All arguments that are left and have no `=`."""
        found = [word for word in self.left if "=" not in word]
        self.left = [word for word in self.left if "=" in word]
        return found

    def words(self) -> list[str]:
        """All arguments that are left."""
        found, self.left = self.left, []
        return found

    def next(self, otherwise: str | None = None) -> str:
        """The first argument that is left, unless it is a named one."""
        if self.left and "=" not in self.left[0]:
            return self.left.pop(0)
        if otherwise is None:
            raise ValueError(f"{self.name}: an argument is missing")
        return otherwise

    def flag(self, word: str) -> bool:
        if word not in self.left:
            return False
        self.left.remove(word)
        return True

    def get(self, name: str, otherwise: str = "") -> str:
        """The value of a named argument."""
        for word in self.left:
            if word.startswith(f"{name}="):
                self.left.remove(word)
                return word.partition("=")[2]
        return otherwise

    def number(self, name: str, otherwise: int) -> int:
        return int(self.get(name, str(otherwise)))

    def named(self, is_wanted: Callable[[str], bool] = lambda name: True) -> dict[str, str]:
        """All named arguments that are left, or those with names that are wanted."""
        found = [word.partition("=") for word in self.left if "=" in word and is_wanted(word.partition("=")[0])]
        self.left = [word for word in self.left if "=" not in word or not is_wanted(word.partition("=")[0])]
        return {name: value for name, _, value in found}


def numbers(text: str) -> tuple[int, ...]:
    """`0,1,5`, `0-2`, or `-` for none."""
    if text in ("-", ""):
        return ()
    first, dash, last = text.partition("-")
    if dash and first.isdigit():
        return tuple(range(int(first), int(last) + 1))
    return tuple(int(part) for part in text.split(","))


def listed(values: Iterable[object]) -> str:
    """`0,1,5`, or `-` for none."""
    return ",".join(map(str, values)) or "-"


# -- files -------------------------------------------------------------------------------------------------------------


def cases(folder: Path, *names: str) -> list[ParameterSet]:
    """The cases of these files of a folder, each with its citations: parameters for a test."""
    paths = [folder / f"{name}.txt" for name in names] if names else sorted(folder.glob("*.txt"))
    return [
        pytest.param(case, id=case.name, marks=[pytest.mark.covers(*case.items)] if case.items else [])
        for path in paths
        for case in _read(path)
    ]


def _read(path: Path) -> Iterator[Case]:
    prologue, *rest = _blocks(path.read_text(encoding="utf-8"))
    titles = set()
    for title_line, *lines in rest:
        found = _TITLE.fullmatch(title_line)
        if found is None or found["title"] in titles:
            raise ValueError(f"{path}: the title is wrong, or is there twice: {title_line}")
        titles.add(found["title"])
        choices = [match for line in lines if (match := _EACH.fullmatch(line))]
        options = [[value.strip() for value in match["values"].split("|")] for match in choices]
        for number, chosen in enumerate(itertools.product(*options)):
            values = {match["name"]: value for match, value in zip(choices, chosen, strict=True)}
            items = tuple((found["items"] or "").split())
            yield Case(path, found["title"], items, tuple(prologue), tuple(lines), values, number == 0)


def _blocks(text: str) -> Iterator[list[str]]:
    """The prologue, then the lines of each case, without the empty ones between cases."""
    block: list[str] = []
    for line in text.splitlines():
        if line.startswith("== "):
            yield block
            block = []
        if line:
            block.append(line)
    yield block


def check_transcript(case: Case, script: Script, rewrite: bool = False) -> None:
    """Asserts that the commands of the case print what its file says."""
    for line in case.prologue:
        assert _printed(case, script, line) == [], f"the prologue prints nothing: {line}"
    played: list[str] = []
    for line in case.lines:
        if not line.startswith(INDENT):
            commands = line.partition(ARROW)[0]
            played += _laid_out(commands, _printed(case, script, commands))
    found, wanted = ("\n".join(map(case.filled, lines)) for lines in (played, case.lines))
    if rewrite and found != wanted:
        _write(case, played)
    else:
        assert found == wanted, case.name


def _laid_out(commands: str, printed: Sequence[str]) -> list[str]:
    line = ARROW.join([commands, *printed])
    if len(printed) == 1 and len(line) <= WIDTH:
        return [line]
    return [commands, *(f"{INDENT}{item}" for item in printed)]


def _printed(case: Case, script: Script, line: str) -> list[str]:
    if line.startswith("#") or _EACH.fullmatch(line):
        return []
    printed: list[str] = []
    for command in case.filled(line).split(";"):
        try:
            printed += script.run(command)
        except Exception as error:
            error.add_note(f"{case.path.name}, {case.title!r}: {command.strip()}")
            raise
    return printed


def _write(case: Case, lines: Sequence[str]) -> None:
    """Replaces the lines of a case in its file; those of the first choice of values stand for all."""
    if not case.is_first:
        return
    blocks = list(_blocks(case.path.read_text(encoding="utf-8")))
    for block in blocks[1:]:
        found = _TITLE.fullmatch(block[0])
        if found is not None and found["title"] == case.title:
            block[1:] = lines
    case.path.write_text("\n\n".join("\n".join(block) for block in blocks if block) + "\n", encoding="utf-8")
