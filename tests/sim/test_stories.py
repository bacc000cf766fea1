"""Golden transcripts: each shipped scenario as a story. A change of the protocol shows here as a change of the story.

`pytest tests/sim/test_stories.py --rewrite-traces` writes them anew; read the difference before it is committed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.scenarios.loader import load_scenario
from experiments.scenarios.runner import Runner
from experiments.sim.engine import SimEngine
from experiments.story import tell
from tests.sim.run_scenario import SCENARIOS, spec_of

TRACES = Path(__file__).parent.parent / "traces"


def _story(path: Path) -> str:
    scenario = load_scenario(path)
    engine = SimEngine(spec_of(scenario, 0))
    assert Runner(scenario, engine).run().passed
    return "\n".join([f"# {scenario.name}, seed 0", *tell(engine.traces())]) + "\n"


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_story_is_the_one_that_was_told(path: Path, request: pytest.FixtureRequest) -> None:
    golden = TRACES / f"{path.stem}.txt"
    story = _story(path)
    if request.config.getoption("--rewrite-traces"):
        golden.write_text(story)
    assert story == golden.read_text()


def test_every_transcript_has_its_scenario() -> None:
    assert sorted(path.stem for path in TRACES.glob("*.txt")) == sorted(path.stem for path in SCENARIOS)
