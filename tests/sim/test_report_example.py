"""The example of a loss in a report: a trial of the study, run again to the same loss, with its page."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.explorer.run import StoryRow
from experiments.studies.design.study import StudyPlan
from experiments.studies.report.example import Example, example_of, story_of
from experiments.studies.report.render import PageExtras, render
from experiments.studies.report.settings import groups
from experiments.studies.sweeps.batches import commit
from experiments.studies.sweeps.output import StudyRecord
from experiments.studies.sweeps.storage import Folder
from experiments.studies.trials.batch import Batch, run_batch
from experiments.studies.trials.trial import run_trial
from tests.synthetic_studies import RUNS, cells_of, study_of

pytestmark = pytest.mark.slow

TRIALS = 6
CELLS = ("0123456789abcdef", "fedcba9876543210")
BASE = {"broker_mttf": "3d", "broker_mttr": "1d", "tail_loss_probability": 1.0, "estimator": "plain"}
STUDY = study_of(duration="60d", base=BASE, sweep={"min_insync_replicas": [1, 2]})


def swept(study: StudyPlan, out: Path) -> StudyRecord:
    """The record of the study, some trials of which are in `out`."""
    for cell, digest in zip(study.cells, CELLS, strict=True):
        batch = Batch(digest, 0, TRIALS)
        commit(Folder(out), batch, *run_batch(run_trial, cell.parameters, batch, study.seed))
    return StudyRecord(study, RUNS, CELLS)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[StudyRecord, Example, Path]:
    out = tmp_path_factory.mktemp("study")
    record = swept(STUDY, out)
    example = example_of(record, groups(STUDY, cells_of(STUDY, [5, 0])), Folder(out), out / "loss.html")
    assert example is not None
    return record, example, out


def test_story_of_the_loss_has_ten_lines(found: tuple[StudyRecord, Example, Path]) -> None:
    _, example, _ = found
    assert 3 <= len(example.story) <= 10
    (loss,) = (line for line in example.story if line.is_loss)
    assert loss.time == "the loss"
    assert "missing from the log of broker-" in loss.text
    assert any(line.text.startswith(("broker-", "leads ")) for line in example.story)


def test_the_lines_of_a_loss_begin_with_the_crashes_that_caused_it() -> None:
    """Where there are more than ten lines, alerts give way; what happens to several nodes at once is one line."""
    events = [
        StoryRow(0, None, None, "broker-0 crashes", is_heading=True),
        StoryRow(0, None, None, "broker-1 crashes", is_heading=True),
        StoryRow(0, 10, 1000, "ALERT: t-0 is offline"),
        *(StoryRow(index, 10 + index, 1000, f"t-0: leader 0, epochs {index}/1, ISR {{0}}") for index in range(1, 9)),
        StoryRow(9, None, None, "violated: AcknowledgedRecordsLost: t-0: 1 record", is_heading=True),
    ]
    lines, lost_ms = story_of(events)
    assert len(lines) == 10
    assert lines[0].text == "broker-0 and broker-1: each crashes"
    assert (lines[-1].text, lines[-1].is_loss, lost_ms) == ("t-0: 1 record", True, 18)


@pytest.mark.slow
def test_example_is_replayed_by_its_command_and_has_a_page(found: tuple[StudyRecord, Example, Path]) -> None:
    record, example, out = found
    assert example.command.startswith("isray study replay . --cell ")
    assert f"--trial {example.trial} --html loss.html" in example.command
    assert "<!DOCTYPE html>" in (out / "loss.html").read_text(encoding="utf-8")
    page = render(record, cells_of(STUDY, [5, 0]), PageExtras(example=example))
    assert 'href="loss.html"' in page
    assert f"seed {example.seed}" in page


def test_study_without_losses_has_no_example(tmp_path: Path) -> None:
    study = study_of(duration="1d", base=BASE | {"tail_loss_probability": 0.0}, sweep={"min_insync_replicas": [1, 2]})
    record = swept(study, tmp_path)
    page = tmp_path / "loss.html"
    assert example_of(record, groups(study, cells_of(study, [0, 0])), Folder(tmp_path), page) is None
    assert not page.exists()


def test_trial_of_other_code_is_no_example(tmp_path: Path) -> None:
    """The study of another seed has other trials than those in the directory."""
    record = swept(STUDY, tmp_path)
    other = record._replace(study=STUDY.model_copy(update={"seed": 1}))
    cells = groups(other.study, cells_of(STUDY, [5, 0]))
    assert example_of(other, cells, Folder(tmp_path), tmp_path / "loss.html") is None
