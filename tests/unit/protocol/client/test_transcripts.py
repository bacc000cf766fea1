"""What a client does, as transcripts in `testdata` (`tests/unit/protocol/transcripts.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.protocol.client.client_script import ClientScript
from tests.unit.protocol.client.producer_script import ProducerScript
from tests.unit.protocol.transcripts import Case, cases, check_transcript

TESTDATA = Path(__file__).parent / "testdata"


@pytest.mark.parametrize("case", cases(TESTDATA / "client"))
def test_client(case: Case, rewriting: bool) -> None:
    check_transcript(case, ClientScript(), rewriting)


@pytest.mark.parametrize("case", cases(TESTDATA))
def test_transcript(case: Case, rewriting: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    check_transcript(case, ProducerScript(monkeypatch), rewriting)
