"""`isray metrics`: what it prints, where it writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from experiments.engines.clusters.cluster_state import ClusterOptions, claim, write_state
from tests.unit.experiments.cli.cli_helpers import Commands


def printed(command: Commands, *arguments: str) -> str:
    code, out, err = command.run("metrics", *arguments)
    assert (code, err) == (0, "")
    return out


def test_files_are_printed_or_written(command: Commands, tmp_path: Path) -> None:
    assert json.loads(printed(command, "dashboard"))["uid"] == "isray-cluster"
    assert len(yaml.safe_load(printed(command, "rules"))["groups"]) == 2
    out = tmp_path / "new" / "prometheus.yaml"
    assert printed(command, "scrape-config", "--out", str(out), "--discovery", "/ray/found.json") == ""
    [job] = yaml.safe_load(out.read_text())["scrape_configs"]
    assert job["file_sd_configs"][0]["files"] == ["/ray/found.json"]


def test_the_metrics_ports_of_a_cluster_are_those_that_up_has_printed(
    command: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    state = claim(ClusterOptions(name="shop"))
    write_state(state.model_copy(update={"metrics": ("127.0.0.1:8080", "127.0.0.1:8081")}))
    [job] = yaml.safe_load(printed(command, "scrape-config", "--name", "shop"))["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["127.0.0.1:8080", "127.0.0.1:8081"]}]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--target", "8080"), "isray: --target: found 8080; allowed: host:port of a Ray node's metrics\n"),
        (("--target", "a:0"), "isray: --target: found a:0; allowed: host:port of a Ray node's metrics\n"),
        (("--name", "a", "--target", "b:1"), "isray: --name: found --name with --target; allowed: one of the two\n"),
    ],
)
def test_wrong_targets_are_refused(command: Commands, arguments: tuple[str, ...], line: str) -> None:
    assert command.run("metrics", "scrape-config", *arguments) == (2, "", line)


def test_a_file_that_cannot_be_written_is_refused(command: Commands, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, out, err = command.run("metrics", "rules", "--out", str(tmp_path / "file" / "rules.yaml"))
    assert (code, out, err.count("\n"), "a file that can be written" in err) == (2, "", 1, True)
