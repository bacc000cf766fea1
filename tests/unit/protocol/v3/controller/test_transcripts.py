"""What a V3 controller writes and which commands it sends, as transcripts in `testdata`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.protocol.transcripts import Case, cases, check_transcript
from tests.unit.protocol.v3.controller.controller_script import V3Script


@pytest.mark.parametrize("case", cases(Path(__file__).parent / "testdata"))
def test_transcript(case: Case, rewriting: bool) -> None:
    check_transcript(case, V3Script(), rewriting)
