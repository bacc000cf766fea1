"""What is assumed about failures, in words."""

from __future__ import annotations

import pytest

from experiments.studies.design.model import DAY_MS, CellParameters
from experiments.studies.design.presets import PRESETS
from experiments.studies.design.recorded import RecordedFailures, RecordedOutage
from experiments.studies.failures.words import assumptions, remarks, shared_assumptions
from tests.yaml_rows import rows

RECORD = RecordedFailures(
    file="f.csv", mode="blocks", length_ms=90 * DAY_MS, outages=(RecordedOutage(1, 5, 10, "lossy"),)
)


def test_the_plain_model_names_rates_times_and_what_is_absent() -> None:
    text = " ".join(assumptions(CellParameters(tail_loss_probability=0.1)))
    for words in (
        "130 days on average (exponential) after its start: 2.81 times per year up",
        "started again after 15 minutes",
        "10 % lose the records that were not flushed",
        "no correlated failures",
        "Catch-up is immediate",
        "warm-up is not measured",
    ):
        assert words in text


@pytest.mark.parametrize(("changes", "words"), rows(__file__, "sentences.yaml"))
def test_each_parameter_has_its_sentence(changes: dict[str, object], words: str) -> None:
    assert words in " ".join(assumptions(CellParameters.model_validate(changes)))


@pytest.mark.parametrize("words", ["1 outage of 1 broker in 90 days", "no outage of brokers 0, 2"])
def test_recorded_failures_have_their_sentences(words: str) -> None:
    assert words in " ".join(assumptions(CellParameters(failures=RECORD)))


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_named_with_its_source_and_what_it_leaves_out(name: str) -> None:
    text = " ".join(assumptions(CellParameters.model_validate({"preset": name})))
    assert f"the preset {name}. Source: {PRESETS[name].source}" in text
    assert "It leaves out: " in text
    assert PRESETS[name].leaves_out[1:] in text


def test_sentences_that_only_some_cells_have_are_kept_apart() -> None:
    cells = {"a": CellParameters(), "b": CellParameters(broker_mttf=None)}
    common, own = shared_assumptions(cells)
    assert "Catch-up is immediate: a restarted replica has no volume to fetch." in common
    assert [name for name, _ in own] == ["a", "b"]
    assert "Brokers do not fail by themselves; only the causes below end them." in own[1][1]
    assert shared_assumptions({"a": CellParameters()}) == (assumptions(CellParameters()), [])


def test_a_function_replaces_what_the_parameters_say_about_failures() -> None:
    text = " ".join(assumptions(CellParameters(racks=3, preset="weekly-crash"), "my_model"))
    assert "All failures come from the function my_model" in text
    assert "3 racks" in text
    assert "weekly-crash" not in text


def test_remarks_name_the_effective_min_isr_and_the_replicas_that_share_a_rack_once() -> None:
    cell = CellParameters(brokers=6, racks=2, replication_factor=5, min_insync_replicas=6)
    assert remarks([cell, cell, CellParameters()]) == [
        "min ISR 6 is above RF 5: the effective min ISR is 5.",
        "RF 5 is above the 2 racks: up to 3 replicas share a rack.",
    ]


@pytest.mark.covers("E8")
def test_before_kip_966_a_min_isr_above_the_replication_factor_refuses_writes() -> None:
    cells = [CellParameters(generation=name, min_insync_replicas=4) for name in ("kip-497", "kip-966-elr")]
    assert remarks(cells) == [
        "min ISR 4 is above RF 3, which kip-497 takes as it is: all writes with acks=all are refused.",
        "min ISR 4 is above RF 3: the effective min ISR is 3.",
    ]
