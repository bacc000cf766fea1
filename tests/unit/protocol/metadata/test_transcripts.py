"""What nodes answer from their image, as transcripts in `testdata` (`tests/unit/protocol/transcripts.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.protocol.metadata.metadata_script import MetadataScript
from tests.unit.protocol.transcripts import Case, cases, check_transcript


@pytest.mark.parametrize("case", cases(Path(__file__).parent / "testdata"))
def test_transcript(case: Case, rewriting: bool) -> None:
    check_transcript(case, MetadataScript(), rewriting)
