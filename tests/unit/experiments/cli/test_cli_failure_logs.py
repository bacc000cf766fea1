"""`isray study import-failures`: what the page of the how-to shows, JSON, and options that do not fit."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.unit.experiments.cli.cli_helpers import Commands

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs" / "how-to" / "use-your-own-failure-log.md"
DATA = ROOT / "tests" / "unit" / "experiments" / "studies" / "logs" / "testdata"


def test_the_command_of_the_page_prints_what_the_page_shows(
    monkeypatch: pytest.MonkeyPatch, command: Commands, tmp_path: Path
) -> None:
    log, printed = re.findall(r"^```text\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    (tmp_path / "incidents.csv").write_text(log)
    monkeypatch.chdir(tmp_path)
    line = "study import-failures incidents.csv --map node=hostname,down=start_time,up=end_time --out outages.csv"
    code, out, err = command.run(*line.split())
    assert (code, out) == (0, printed), err
    assert (tmp_path / "outages.csv").read_text() == (
        "node,down_ms,up_ms,kind\n0,0,540500,unclean\n1,0,1800000,unclean\n2,50400000,136800000,unclean\n"
    )


def test_json_accounts_for_every_line(command: Commands, tmp_path: Path) -> None:
    options = ("--format", "google", "--brokers", "2", "--out", str(tmp_path / "o.csv"), "--json")
    code, out, _ = command.run("study", "import-failures", str(DATA / "google.csv"), *options)
    found = json.loads(out)
    assert code == 0
    assert found["lines"] == found["outages"] + found["joined"] + found["ends"] + sum(found["left_out"].values())
    assert (found["lines"], found["outages"], found["nodes"]) == (8, 1, {"5": 0, "6": 1})


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--format", "lan"], "--format: found 'lan'; allowed: one of csv, lanl, fta, google, backblaze"),
        (["--unit", "m"], "--unit: found 'm'; allowed: one of s, ms, us"),
        (["--map", "node"], "--map: found 'node'; allowed: FIELD=COLUMN,..., each name once"),
        (["--nodes", "a=0,b=0"], "--nodes: found a broker twice; allowed: .*"),
        (["--nodes", "a=0,b=x"], "--nodes: found b=x; allowed: NAME=BROKER,..., each broker once, from 0 to 998"),
        (["--nodes", "a=0", "--brokers", "3"], "--brokers: found --nodes as well; allowed: one of the two"),
        (["--repair", "0s"], "--repair: found '0s'; allowed: a duration above 0"),
        (["--repair", "x"], "--repair: found 'x'; allowed: a number and a unit .*"),
        (["--out", "/nowhere/o.csv"], "--out: found /nowhere/o.csv; allowed: a file in a directory that exists"),
    ],
)
def test_an_option_that_does_not_fit_is_one_line(
    options: list[str], line: str, command: Commands, tmp_path: Path
) -> None:
    code, _, err = command.run(
        *("study", "import-failures", str(DATA / "csv.csv"), "--out", str(tmp_path / "o.csv")), *options
    )
    assert code == 2
    assert re.fullmatch(f"isray: {line}\n", err), err
