"""Declarations that are data are checked when they are read."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from experiments.support.declared import declared


def test_a_declaration_is_of_its_type_or_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.yaml").write_text("{a: 1, b: 2}")
    assert declared(dict[str, int], str(tmp_path / "module.py"), "rows.yaml") == {"a": 1, "b": 2}
    with pytest.raises(ValidationError):
        declared(dict[str, bytes], str(tmp_path / "module.py"), "rows.yaml")
