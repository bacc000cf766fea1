"""Wrong options, command by command: one line on standard error, exit code 2, and no connection to a cluster."""

from __future__ import annotations

import shlex

import pytest

from tests.unit.experiments.cli.cli_helpers import Commands
from tests.yaml_rows import table

WRONG = table(__file__, "wrong-options.yaml")
"""The arguments of each command; behind `=>`, what the line names."""
COVERS = {"leader-election": ("J1", "J5", "J6", "J7", "J9")}


@pytest.mark.parametrize(
    ("name", "line"),
    [
        pytest.param(name, line, marks=pytest.mark.covers(*COVERS[name]) if name in COVERS else ())
        for name, lines in WRONG.items()
        for line in lines
    ],
)
def test_wrong_options_are_one_line_and_exit_code_2(command: Commands, name: str, line: str) -> None:
    arguments, _, named = line.partition("=> ")
    refused = command.refused(*name.split(), *shlex.split(arguments))
    assert refused.startswith("isray: ")
    assert "; allowed: " in refused
    assert named in refused
