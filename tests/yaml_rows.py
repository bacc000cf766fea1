"""Rows of a test's table from a YAML file, for `pytest.mark.parametrize`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml


def table(module: str, name: str) -> dict[str, Any]:
    """The content of the file `testdata/NAME` beside the file `module`, in the order of the file."""
    found: dict[str, Any] = yaml.safe_load((Path(module).parent / "testdata" / name).read_text(encoding="utf-8"))
    return found


def rows(module: str, name: str) -> list[Any]:
    """The rows of a `table`: lists of arguments by the names of the cases."""
    return [pytest.param(*arguments, id=case) for case, arguments in table(module, name).items()]
