"""The broker node of generation `v3`: transcripts in `testdata`, and timers."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.errors import ProtocolInvariantError
from tests.unit.protocol.transcripts import Case, cases, check_transcript
from tests.unit.protocol.v3.broker.broker_script import V3BrokerScript


@pytest.mark.parametrize("case", cases(Path(__file__).parent / "testdata"))
def test_transcript(case: Case, rewriting: bool) -> None:
    check_transcript(case, V3BrokerScript(), rewriting)


def test_an_unknown_timer_is_a_defect() -> None:
    with pytest.raises(ProtocolInvariantError, match="has no timer"):
        V3BrokerScript().node.fire(1, "nothing")
