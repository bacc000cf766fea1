"""Files that come with isray: a command takes them by name, wherever the packages are installed."""

from __future__ import annotations

from pathlib import Path

from experiments.support.build import PACKAGES_FOLDER
from experiments.support.errors import InputError
from protocol.errors import did_you_mean

SCENARIOS = PACKAGES_FOLDER / "experiments" / "scenarios"
STUDIES = PACKAGES_FOLDER / "experiments" / "studies"


def file_or_shipped(path: Path, folder: Path, what: str) -> Path:
    """`path` if there is such a file, otherwise the shipped file in `folder` of that name, with or without `.yaml`.

    `what` names the content in the InputError for a name that is neither. A path with a folder is returned as it is:
    who reads it reports what is wrong.
    """
    if path.exists() or path.name != str(path):
        return path
    shipped = folder / f"{path.name.removesuffix('.yaml')}.yaml"
    if not shipped.is_file():
        names = sorted(file.stem for file in folder.glob("*.yaml"))
        found = f"no such file{did_you_mean(shipped.stem, names)}"
        raise InputError(str(path), "", found, f"{what} (YAML), or the name of a shipped one: {', '.join(names)}")
    return shipped
