"""What a broker does, as transcripts in `testdata` (`tests/unit/protocol/transcripts.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.protocol.broker.broker_script import BrokerScript
from tests.unit.protocol.broker.leader_script import LeaderScript
from tests.unit.protocol.transcripts import Case, cases, check_transcript


@pytest.mark.parametrize("case", cases(Path(__file__).parent / "testdata"))
def test_transcript(case: Case, rewriting: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    check_transcript(case, BrokerScript(monkeypatch), rewriting)


@pytest.mark.parametrize("case", cases(Path(__file__).parent / "testdata" / "limits"))
def test_limits(case: Case, rewriting: bool) -> None:
    check_transcript(case, LeaderScript(), rewriting)
