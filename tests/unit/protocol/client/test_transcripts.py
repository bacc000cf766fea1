"""What a client's producer does, as transcripts in `testdata` (`tests/unit/protocol/transcripts.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.protocol.client.producer_script import ProducerScript
from tests.unit.protocol.transcripts import Case, cases, check_transcript


@pytest.mark.parametrize("case", cases(Path(__file__).parent / "testdata"))
def test_transcript(case: Case, rewriting: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    check_transcript(case, ProducerScript(monkeypatch), rewriting)
