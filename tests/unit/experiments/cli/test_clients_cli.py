"""`isray clients`, `isray clients replay` and `isray clients compare`: documents, text, exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.hunt.clients import processes
from experiments.hunt.clients.plan import ClientFinding, ClientPlan, load
from experiments.hunt.clients.processes import Compared
from tests.unit.experiments.cli.cli_helpers import Commands

FOUND = Path(__file__).parents[3] / "data" / "client_findings" / "metadata-without-a-pause.yaml"


def test_a_search_that_finds_nothing(command: Commands, tmp_path: Path) -> None:
    found = command.json("clients", "--seeds", "0..1", "--out", str(tmp_path / "out"))
    assert (found["seeds"], found["findings"]) == (2, [])
    assert found["client_seconds"] > 50
    assert len((tmp_path / "out" / "seeds.jsonl").read_text().splitlines()) == 2


def test_a_finding_is_replayed_with_its_page(command: Commands, tmp_path: Path) -> None:
    page = tmp_path / "run.html"
    code, out, _ = command.run("clients", "replay", str(FOUND), "--html", str(page))
    assert code == 0
    assert out.startswith("busy: API 3: ")
    assert f"page: {page}" in out
    assert page.exists()


def test_a_replay_says_what_was_not_found(command: Commands, tmp_path: Path) -> None:
    path = tmp_path / "quiet.yaml"
    path.write_text(
        "format: isray-client-finding\nfinding: {kind: duplicate}\ntrace_hash: ''\nplan: {seed: 1, records: 1}\n"
    )
    code, out, _ = command.run("clients", "replay", str(path))
    assert code == 1
    assert "nothing was found\nnot found: duplicate\n" in out


def test_what_is_no_seed_and_no_file_is_refused(command: Commands, tmp_path: Path) -> None:
    path = tmp_path / "none.yaml"
    code, _, err = command.run("clients", "replay", str(path))
    assert code == 2
    assert f"{path}: found No such file or directory; allowed: a finding of isray clients (YAML)" in err
    code, _, err = command.run("clients", "--seeds", "4..2", "--out", str(tmp_path))
    assert code == 2
    assert "--seeds: found '4..2'; allowed: A..B with A <= B" in err


def test_what_each_library_has_shown_on_processes(command: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison itself starts processes; here a fake one has the plan of the file."""
    plans: list[ClientPlan] = []

    def compare(plan: ClientPlan) -> dict[str, Compared]:
        plans.append(plan)
        stuck = ClientFinding(kind="stuck-reader", what="silent", detail="offset 1")
        return {"aiokafka": Compared([stuck], {1: 7, 3: 245}), "librdkafka": Compared([], {3: 2})}

    monkeypatch.setattr(processes, "compare", compare)
    code, out, _ = command.run("clients", "compare", str(FOUND))
    assert (code, plans) == (0, [load(FOUND).plan])
    assert out.splitlines() == [
        "aiokafka: stuck-reader: silent: offset 1",
        "aiokafka: most requests in a second: API 1 7, API 3 245",
        "librdkafka: nothing was found",
        "librdkafka: most requests in a second: API 3 2",
    ]
    document = command.json("clients", "compare", str(FOUND))
    assert document["librdkafka"] == {"findings": [], "busiest": {"3": 2}}
