"""`isray clients` and `isray clients replay`: documents, text, exit codes."""

from __future__ import annotations

from pathlib import Path

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
