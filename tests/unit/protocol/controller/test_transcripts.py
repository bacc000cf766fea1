"""What a controller decides, as transcripts in `testdata` (`tests/unit/protocol/transcripts.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.protocol.controller.controller_script import ControllerScript
from tests.unit.protocol.controller.decision_script import DecisionScript
from tests.unit.protocol.controller.recovery_script import RecoveryScript
from tests.unit.protocol.transcripts import Case, cases, check_transcript

TESTDATA = Path(__file__).parent / "testdata"


@pytest.mark.parametrize("case", cases(TESTDATA))
def test_transcript(case: Case, rewriting: bool) -> None:
    check_transcript(case, ControllerScript(), rewriting)


@pytest.mark.parametrize("case", cases(TESTDATA / "decision"))
def test_decision(case: Case, rewriting: bool) -> None:
    check_transcript(case, DecisionScript(), rewriting)


@pytest.mark.parametrize("case", cases(TESTDATA / "recovery"))
def test_recovery(case: Case, rewriting: bool) -> None:
    check_transcript(case, RecoveryScript(), rewriting)
