"""What controller and broker nodes do, as transcripts in `testdata` (`tests/unit/protocol/transcripts.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.protocol.nodes.broker_node_script import BrokerNodeScript
from tests.unit.protocol.nodes.controller_node_script import ControllerNodeScript
from tests.unit.protocol.nodes.quorum_controller_script import QuorumControllerScript
from tests.unit.protocol.nodes.recovery_script import RecoveryManagerScript
from tests.unit.protocol.transcripts import Case, cases, check_transcript

TESTDATA = Path(__file__).parent / "testdata"


@pytest.mark.parametrize("case", cases(TESTDATA))
def test_transcript(case: Case, rewriting: bool) -> None:
    check_transcript(case, ControllerNodeScript(), rewriting)


@pytest.mark.parametrize("case", cases(TESTDATA / "broker"))
def test_broker(case: Case, rewriting: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    check_transcript(case, BrokerNodeScript(monkeypatch), rewriting)


@pytest.mark.parametrize("case", cases(TESTDATA / "recovery"))
def test_recovery_manager(case: Case, rewriting: bool) -> None:
    check_transcript(case, RecoveryManagerScript(), rewriting)


@pytest.mark.parametrize("case", cases(TESTDATA / "quorum"))
def test_controller_of_three(case: Case, rewriting: bool) -> None:
    check_transcript(case, QuorumControllerScript(), rewriting)
