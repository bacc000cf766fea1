"""The tutorial, and the how-to guides that sweep on Ray: every command does what its page shows.

Each page is followed from its first command to its last, as its reader would. The guides' sweeps join this process's
private Ray, by the variable with which Ray names a cluster; the tutorial's cluster and study start a Ray each, as its
reader's do. The tutorial's study has fewer trials here: its 100 take 45 s of processor time.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from tests.console_blocks import Reader
from tests.ray.command_helpers import ROOT

PAGES = ("how-to/write-a-study.md", "how-to/write-a-failure-model.md")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("private_ray")
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_guide_do_what_it_shows(page: str, tmp_path: Path) -> None:
    places = {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    assert Reader(tmp_path, places, is_quick=True).follow(ROOT / "docs" / page)


@pytest.fixture
def reader() -> Iterator[Reader]:
    """A reader whose clusters have files of their own, in a folder whose name is short enough for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="g", dir="/tmp"))
    found = Reader(folder, {"TMPDIR": str(folder), "XDG_RUNTIME_DIR": str(folder)}, is_quick=True)
    yield found
    found.run("isray down")
    shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_the_commands_of_the_tutorial_do_what_it_shows(reader: Reader) -> None:
    assert reader.follow(ROOT / "docs" / "tutorial.md", ("trials: 50", "trials: 3"))
    assert (reader.folder / "out" / "orders" / "report.html").is_file()
