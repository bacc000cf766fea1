"""Files by name: the user's own file comes first, then the shipped one."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.support.errors import InputError
from experiments.support.shipped import SCENARIOS, STUDIES, file_or_shipped


@pytest.mark.parametrize("folder", [SCENARIOS, STUDIES])
@pytest.mark.parametrize("name", ["last-replica-standing", "last-replica-standing.yaml"])
def test_name_of_a_shipped_file_is_found_outside_the_checkout(
    folder: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert file_or_shipped(Path(name), folder, "a file") == folder / "last-replica-standing.yaml"
    (tmp_path / name).write_text("name: mine\n")
    assert file_or_shipped(Path(name), folder, "a file").read_text() == "name: mine\n"


def test_unknown_name_is_refused_with_the_names_and_a_path_is_left_to_its_reader() -> None:
    with pytest.raises(InputError, match=r"none: found no such file; allowed: a study .* last-replica-standing"):
        file_or_shipped(Path("none"), STUDIES, "a study file")
    assert file_or_shipped(Path("folder/none.yaml"), STUDIES, "a study file") == Path("folder/none.yaml")
