"""Runs the console blocks of a page as its reader would: in order, in one folder, with the files that the page shows.

What a page's blocks mean:

- A `console` block has commands, each after `$ `, and below each what it prints. `...` stands for any text, and spaces
  and line breaks count as one space. Where nothing is shown, the exit code alone is compared; it must be 0.
- A command that ends in `# repeat until` is run again until it prints what is shown.
- A `yaml` block whose first line is `# NAME.yaml` is the content of that file.

Commands may be run as other tests run them (`tests/ray/command_helpers.py`), which spares their imports.
"""

from __future__ import annotations

import doctest
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.ray.command_helpers import command_environment, isray

REPEAT = "# repeat until"
SHELL = frozenset("|&;<>()$`*?[]{}~#")
"""Characters by which a line needs a shell."""
TRIES = 60
WITHIN_S = 600
_BLOCK = re.compile(r"^```(console|yaml)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"# ([\w-]+\.yaml)\n")
_PIPE = re.compile(r"(isray [^|]*?)( 2>&1)? \| (.*)")
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True, slots=True)
class File:
    """A file that the page shows."""

    name: str
    content: str


@dataclass(frozen=True, slots=True)
class Command:
    """A command line with the output that the page shows; `repeated`: until the output is that."""

    line: str
    expected: str
    repeated: bool


def steps(text: str) -> Iterator[File | Command]:
    """What the reader of a page does, in order."""
    for language, body in _BLOCK.findall(text):
        if language == "console":
            yield from _commands(body)
        elif named := _FILE.match(body):
            yield File(named[1], body)


def _commands(body: str) -> Iterator[Command]:
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        line, _, expected = part.partition("\n")
        yield Command(line.removesuffix(REPEAT).rstrip(), expected, line.endswith(REPEAT))


class Reader:
    """Follows pages in a folder. `places`: environment variables of the commands besides the usual ones, `environment`:
    all of them. `is_quick`: an `isray` that needs no shell is run without one, in a process that has made its imports,
    also as the first command of a pipe.
    """

    def __init__(self, folder: Path, places: Mapping[str, str] | None = None, is_quick: bool = False) -> None:
        self.folder, self.is_quick = folder, is_quick
        tools = folder / ".bin"
        tools.mkdir()
        scripts = {
            "isray": f"#!{sys.executable}\nfrom experiments.cli.main import run\n\nrun()\n",
            "python": f'#!/bin/sh\nexec {sys.executable} "$@"\n',
        }
        for name, content in scripts.items():
            (tools / name).write_text(content)
            (tools / name).chmod(0o755)
        path = f"{tools}{os.pathsep}{os.environ['PATH']}"
        self.environment = command_environment() | {"PATH": path} | dict(places or {})

    def run(self, line: str) -> tuple[int, str]:
        """Exit code, and what the command prints on both outputs."""
        if self.is_quick and line.startswith("isray ") and not SHELL.intersection(line):
            arguments = shlex.split(line)[1:]
            code, printed, _ = isray(
                *arguments, folder=self.folder, within_s=WITHIN_S, environment=self.environment, joined=True
            )
            return code, printed
        if self.is_quick and (pipe := _PIPE.fullmatch(line)) and not SHELL.intersection(pipe[1]):
            return self._run_piped(pipe[1], pipe[3], joined=pipe[2] is not None)
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=WITHIN_S,
        )
        return done.returncode, done.stdout

    def _run_piped(self, command: str, rest: str, joined: bool) -> tuple[int, str]:
        """A pipe that begins with an `isray` command."""
        arguments = shlex.split(command)[1:]
        _, out, err = isray(
            *arguments, folder=self.folder, within_s=WITHIN_S, environment=self.environment, joined=joined
        )
        done = subprocess.run(
            ["bash", "-c", rest], cwd=self.folder, input=out, stdout=subprocess.PIPE, text=True, check=False
        )
        return done.returncode, err + done.stdout

    def follow(self, page: Path, instead: tuple[str, str] = ("", "")) -> int:
        """Does what a page says. AssertionError at the first command that does not do what is shown. Returns how many
        commands were run. `instead`: a text of the page, and what the reader takes for it.
        """
        count = 0
        text = page.read_text(encoding="utf-8")
        assert instead[0] in text
        for step in steps(text.replace(*instead) if instead[0] else text):
            if isinstance(step, File):
                (self.folder / step.name).write_text(step.content)
            else:
                self._check(step)
                count += 1
        return count

    def _check(self, command: Command) -> None:
        for _ in range(TRIES if command.repeated else 1):
            code, found = self.run(command.line)
            if code == 0 and shows(command.expected, found):
                return
        raise AssertionError(f"$ {command.line}\nexit code {code}, expected:\n{command.expected}\nfound:\n{found}")


def shows(expected: str, found: str) -> bool:
    """Whether an output is as a page shows it."""
    return not expected or doctest.OutputChecker().check_output(expected, found, _FLAGS)
