"""Golden transcripts: each shipped scenario as a story, what no scenario file can do, and quorums without a cluster
(`quorum_transcript_helpers.py`). A change of the protocol shows here as a change of the story.

`pytest tests/sim/test_stories.py --rewrite-traces` rewrites them; read the difference before it is committed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from experiments.check.engine import CheckedEngine
from experiments.engines import admin_requests
from experiments.engines.port import ClusterSpec, Loss
from experiments.scenarios.runner import Runner
from experiments.story.render import Heading, render
from protocol.broker.lifecycle import CLEAN_SHUTDOWN_FILE
from protocol.config import ClusterConfig
from protocol.features import Generation
from protocol.ids import TopicPartition
from protocol.messages.commands import AdminCommand
from tests.sim.quorum_transcript_helpers import KRAFT_STORIES
from tests.sim.scenario_helpers import SCENARIOS, shipped, spec_of

TRACES = Path(__file__).parent.parent / "traces"
T0 = TopicPartition("t", 0)


def _story_of_scenario(path: Path) -> str:
    scenario = shipped(path.stem)
    engine = CheckedEngine(spec_of(scenario, 0))
    runner = Runner(scenario, engine)
    result = runner.run()
    assert result.passed, result.steps[-1]
    return _told(scenario.name, engine, runner.headings)


def _told(name: str, engine: CheckedEngine, headings: list[Heading]) -> str:
    return "\n".join([f"# {name}, seed 0", *render(engine.traces(), headings, engine.metadata_log())]) + "\n"


def _story_of_a_stale_clean_shutdown_file() -> str:
    """The file is valid for one epoch only (M16): not for a later incarnation, and not when it is torn."""
    engine = CheckedEngine(ClusterSpec(3, 1, ClusterConfig.of(Generation.KIP_966)))
    headings: list[Heading] = []
    disk = engine.cluster.disks[2]

    def heading(text: str) -> None:
        headings.append(Heading(text, len(engine.traces())))

    def await_elr(elr: set[int], last_known_elr: set[int]) -> None:
        assert engine.run_until(lambda: _eligible(engine) == (elr, last_known_elr), 60_000), _eligible(engine)

    for node in engine.spec.node_ids:
        engine.start(node)
    engine.run_for(1_000)
    create = admin_requests.create_topic("t", ((0, 1, 2),), {"min.insync.replicas": 3})
    engine.submit(AdminCommand(command_id=1, request=create))
    engine.run_for(1_000)
    heading("broker 2 shuts down in good order, and its clean-shutdown file is copied")
    engine.terminate(2)
    assert engine.run_until(lambda: not engine.is_running(2), 60_000)
    await_elr({2}, set())
    copied = disk.read_file(CLEAN_SHUTDOWN_FILE)
    assert copied is not None
    heading("broker 2 starts: the file names its last epoch, it stays in the ELR and joins the ISR")
    engine.start(2)
    await_elr(set(), set())
    for text, file in (
        ("the copy of an earlier incarnation", copied),
        ("torn in the middle", copied[: len(copied) // 2]),
    ):
        heading("broker 2 crashes")
        engine.crash(2, Loss("none"))
        await_elr({2}, set())
        heading(f"broker 2 starts with a clean-shutdown file that is {text}: it counts as unclean")
        disk.write_file(CLEAN_SHUTDOWN_FILE, file)
        engine.set_link(2, 0, False)
        engine.start(2)
        await_elr(set(), {2})
        heading("broker 2 reaches its leader")
        engine.set_link(2, 0, True)
        await_elr(set(), set())
    assert not engine.violations()
    return _told("stale-clean-shutdown-file", engine, headings)


def _eligible(engine: CheckedEngine) -> tuple[set[int], set[int]]:
    view = engine.view()
    assert view is not None
    state = view.partitions[T0]
    return set(state.elr), set(state.last_known_elr)


WITH_STORY = {"power-loss", "higher-epoch", "answer-then-reboot", "urm-crash", "toggle", "longest-log"}
"""Of the recoveries, those whose story shows what the others only vary."""
STORY_FILES = [
    path for path in SCENARIOS if path.stem.removeprefix("recovery-") in WITH_STORY or "recovery-" not in path.stem
]
STORIES: dict[str, Callable[[], str]] = {
    **{path.stem: partial(_story_of_scenario, path) for path in STORY_FILES},
    "stale-clean-shutdown-file": _story_of_a_stale_clean_shutdown_file,
    **KRAFT_STORIES,
}


@pytest.mark.parametrize("name", STORIES)
def test_the_story_equals_the_golden_file(name: str, request: pytest.FixtureRequest) -> None:
    golden = TRACES / f"{name}.txt"
    story = STORIES[name]()
    if request.config.getoption("--rewrite-traces"):
        golden.write_text(story)
    assert story == golden.read_text()


def test_every_golden_file_has_its_story() -> None:
    assert sorted(path.stem for path in TRACES.glob("*.txt")) == sorted(STORIES)
