"""Rows of a test's table from a YAML file, for `pytest.mark.parametrize`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml


def rows(module: str, name: str) -> list[Any]:
    """The rows of the file `testdata/NAME` beside the file `module`: lists of arguments by the names of the cases."""
    found = yaml.safe_load((Path(module).parent / "testdata" / name).read_text(encoding="utf-8"))
    return [pytest.param(*arguments, id=case) for case, arguments in found.items()]
