"""Folders of killed trials are removed, and no others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from experiments.studies.trials.processes.cluster import mark, remove_orphans


def test_the_folder_of_a_process_that_has_ended_is_removed(tmp_path: Path) -> None:
    own, orphan, other = (tmp_path / name for name in ("own", "orphan", "other"))
    mark(own)
    other.mkdir()
    code = "import sys; from pathlib import Path; from experiments.studies.trials.processes.cluster import mark; "
    subprocess.run([sys.executable, "-c", code + "mark(Path(sys.argv[1]))", str(orphan)], check=True)
    (orphan / "broker-0").mkdir()
    remove_orphans(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "own"]
