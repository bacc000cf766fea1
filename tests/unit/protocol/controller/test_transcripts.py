"""What a controller decides, as transcripts in `testdata` (`tests/unit/protocol/transcripts.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.protocol.controller.controller_script import ControllerScript
from tests.unit.protocol.transcripts import Case, cases, check_transcript


@pytest.mark.parametrize("case", cases(Path(__file__).parent / "testdata"))
def test_transcript(case: Case, request: pytest.FixtureRequest) -> None:
    check_transcript(case, ControllerScript(), rewrite=request.config.getoption("--rewrite-traces"))
