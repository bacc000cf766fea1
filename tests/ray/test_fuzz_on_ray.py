"""`isray fuzz --jobs ray`: the same results as in one process, and only the JSON document on standard output."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.hunt.seeds import Hunt, hunt

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("seeds", "mutant"), [(range(6), None), (range(2), "partition-epoch-not-raised")])
def test_ray_finds_what_one_process_finds(seeds: range, mutant: str | None, tmp_path: Path) -> None:
    arguments = ["fuzz", "--seeds", f"0..{seeds.stop - 1}", "--jobs", "ray", "--out", str(tmp_path / "ray"), "--json"]
    arguments += [] if mutant is None else ["--mutant", mutant]
    command = [sys.executable, "-c", "from experiments.cli.main import run; run()", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    expected = hunt(Hunt(seeds, mutant=mutant), tmp_path / "one")
    assert done.returncode == (0 if mutant is None else 1)
    assert bool(expected.violations) == (mutant is not None)
    assert done.stdout.count("\n") == 1
    found, wanted = json.loads(done.stdout), json.loads(json.dumps(expected.document()))
    files = [Path(item.pop("file")) for item in found["violations"]]
    for item in wanted["violations"]:
        del item["file"]
    for name in ("seeds", "events", "violations", "coverage"):
        assert found[name] == wanted[name]
    assert [path.read_text(encoding="utf-8") for path in files] == [
        path.read_text(encoding="utf-8") for _, _, path in expected.violations
    ]
