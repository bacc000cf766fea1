"""The answer of a report follows from the numbers, and never goes beyond them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from experiments.studies.design.estimator import rough_loss_rate
from experiments.studies.design.study import StudyPlan
from experiments.studies.estimation.estimates import CellEstimates
from experiments.studies.estimation.pairs import Comparison, Difference, Ratio
from experiments.studies.estimation.selection import trials_to_distinguish
from experiments.studies.report.charts.tradeoff import frontier
from experiments.studies.report.render import render
from experiments.studies.report.settings import Group, groups
from experiments.studies.report.tradeoffs import PRICES, price, trade_offs
from experiments.studies.report.verdict import Verdict, cautions, judge
from experiments.studies.report.words import number, plain
from tests.synthetic_studies import cells_of, record_of, study_of

BASE = {"broker_mttf": "30d", "detection": "instant"}
FOUR = study_of(base=BASE, sweep={"generation": ["kip-497", "kip-966"], "min_insync_replicas": [1, 2]})
SIX = study_of(base=BASE | {"brokers": 6}, sweep={"replication_factor": [3, 5], "min_insync_replicas": [1, 2, 3]})
PAIR = study_of(base=BASE, sweep={"min_insync_replicas": [1, 2]})
INDEPENDENT = study_of(base=BASE, sweep={"min_insync_replicas": [1, 2]}, pairing=False)
WORLDS = study_of(sweep={"preset": ["dean-first-year", "hdfs-2010", "cloud-vm-5"], "min_insync_replicas": [1, 2]})


def judged(study: StudyPlan, losses: Sequence[int], **shares: Sequence[float]) -> tuple[Verdict, tuple[Group, ...]]:
    found = groups(study, cells_of(study, losses, **shares))
    return judge(study, found), found


def headline(study: StudyPlan, losses: Sequence[int], **shares: Sequence[float]) -> str:
    return plain(judged(study, losses, **shares)[0].headline)


def text_of(verdict: Verdict) -> str:
    return "\n".join(plain(sentence) for sentence in (verdict.headline, *verdict.sentences))


def test_setting_that_loses_least_is_recommended_with_ratio_and_price() -> None:
    verdict, _ = judged(FOUR, [90, 80, 70, 10], unwritable=[1e-4, 1e-3, 1e-4, 1e-3])
    assert verdict.kind == "decided"
    shown = plain(verdict.headline)
    assert shown.startswith(
        "No release of Apache Kafka has kip-966, but of these settings kip-966 · min ISR 2 loses acknowledged records "
        "least often: 0.1 ("
    )
    assert re.search(
        r"\) loss events per partition-year\. The price: writes fail for 7\.8\d h a year more "
        r"\(.* h\), against kip-966 · min ISR 1\.$",
        shown,
    )
    assert headline(FOUR, [90, 80, 70, 10]).endswith(") loss events per partition-year."), "no price is shown"
    text = text_of(verdict)
    assert "No release of Apache Kafka has kip-966: Eligible Leader Replicas are in 4.0 (preview), 4.1 and" in text
    assert "With min ISR 2, kip-966 instead of kip-497 lowers loss events from 0.8 (" in text
    assert re.search(r"ratio 0\.125 \(95 % interval 0\.0\d+ to 0\.\d+, paired\)", text)
    assert ". No difference is shown in the time that writes fail (" in text
    assert "With kip-966, min ISR 2 instead of min ISR 1 lowers loss events from 0.7 (" in text
    assert re.search(r"The price: writes fail for 7\.8\d h a year more \(\d\.\d+ to \d\.\d+ h\)", text)
    assert "o difference is shown in the time that the partition has no leader (" in text


def test_nothing_lost_is_an_upper_limit() -> None:
    verdict, _ = judged(FOUR, [90, 80, 70, 0])
    assert "no loss events seen (at most 0.03 per partition-year)" in plain(verdict.headline)
    assert re.search(r"ratio at most 0\.\d+ \(95 %, paired\)", text_of(verdict))


@pytest.mark.parametrize("losses", [[0] * 6, [1, 0, 1, 0, 0, 1], [30, 29, 31, 28, 30, 27]])
def test_study_that_tells_nothing_apart_recommends_nothing(losses: list[int]) -> None:
    """RF 3 and 5 with min ISR 1 to 3: the setting that is available longest, RF 5 with min ISR 1, is the riskiest."""
    shares = [1e-4, 1e-3, 1e-2, 0.0, 1e-4, 1e-3]
    verdict, found = judged(SIX, losses, unwritable=shares)
    assert verdict.kind == "undecided"
    assert plain(verdict.headline).startswith(
        "This study cannot tell which of its 6 settings loses acknowledged records least often. "
    )
    assert not any(setting.estimates.recommended for group in found for setting in group.settings)


@pytest.mark.slow
def test_page_of_an_undecided_study_has_no_badge_and_no_commands() -> None:
    page = render(record_of(SIX), cells_of(SIX, [1, 0, 1, 0, 0, 1], unwritable=[1e-4, 1e-3, 1e-2, 0.0, 1e-4, 1e-3]))
    assert 'class="badge"' not in page
    assert 'class="best"' not in page
    assert "kafka-topics.sh" not in page
    assert "Settings that are not told apart need not be equal." in page


def test_undecided_study_says_how_many_trials_would_tell() -> None:
    verdict, found = judged(SIX, [30, 29, 31, 20, 30, 22])
    needed = [setting.estimates.trials_to_distinguish or 0 for setting in found[0].undecided]
    assert max(needed) > 300
    expected = f"About {max(needed):,} trials of each would tell, if the estimates are right; it has 100."
    assert plain(verdict.headline).endswith(expected)


@pytest.mark.parametrize(
    ("difference", "needed"),
    [
        (Difference(0.1, -0.1, 0.3), 400),
        (Difference(0.1, -0.9, 1.1), 10_000),
        (Difference(0.1, 0.01, 0.2), None),
        (Difference(0.0, -0.1, 0.1), None),
    ],
)
def test_number_of_trials_shrinks_the_interval_to_exclude_0(difference: Difference, needed: int | None) -> None:
    """Twice as far from the estimate as 0 is: four times the trials."""
    assert trials_to_distinguish(Comparison(difference, Ratio(None, 0.0, None), 100, None), 100) == needed


def test_equal_estimates_give_no_number_of_trials() -> None:
    same = text_of(judged(SIX, [3] * 6)[0])
    assert (
        "All that was seen (3 events) is the same in each, which is too little to say that they do not differ" in same
    )
    assert "they do not say how many trials" in text_of(judged(INDEPENDENT, [3, 3])[0])
    nothing = text_of(judged(SIX, [0] * 6)[0])
    assert "None was seen in 100 partition-years of each (at most 0.03 per partition-year); by a rough" in nothing
    assert "a tenth" not in nothing
    assert "trials of each would tell" not in nothing


CRASHES = study_of(
    base=BASE | {"writeback": "never", "unclean_probability": 1.0, "estimator": "plain"},
    sweep={"min_insync_replicas": [1, 2]},
)


def test_settings_that_lose_in_the_same_trials_are_said_not_to_differ() -> None:
    verdict, (group,) = judged(CRASHES, [20, 20], unwritable=[1e-4, 1e-3])
    assert verdict.kind == "equal"
    assert re.fullmatch(
        r"min ISR 1 and min ISR 2 do not differ in loss events: the same failures cause them, and all 20 that were "
        r"seen are in the same trials of each\. With each of them: 0\.2 \(0\.\d+ to 0\.\d+\) per partition-year\.",
        plain(verdict.headline),
    )
    why, separate, no_reason, effect = (plain(sentence) for sentence in verdict.sentences)
    assert why == (
        "Why: every failure is a crash without a clean-shutdown file; a member leaves the ELR after an unclean "
        "shutdown, so the last known leader is elected with either min ISR; nothing reaches the disk but by a clean "
        "shutdown (writeback never, flush never), so a machine that crashes takes all that was acknowledged since, "
        "however long ago."
    )
    assert separate == (
        "What would separate them: controlled shutdowns (`unclean_probability` below 1, or `rolling_restart`) or "
        "records that reach the disk (`writeback` or `flush_interval`)."
    )
    assert no_reason.startswith("That is no reason for min ISR 1 instead of 2: it holds for these failures alone")
    assert effect.startswith("min ISR 2 and min ISR 1 have the same loss events: 0.2 (")
    assert "The price: writes fail for 7.88 h a year more (" in effect
    assert group.reference.name == "min ISR 2"
    assert [setting.name for setting in frontier(group.settings)] == ["min ISR 1", "min ISR 2"]
    (row,) = trade_offs(CRASHES, group)
    assert row.verdict == "No difference in loss events: the same failures cause them; not writable shorter."
    assert "cannot tell" not in text_of(verdict)
    assert "in the same trials of each, with the same weight. " in text_of(judged(PAIR, [20, 20])[0])


def test_equality_ignorance_and_a_difference_are_three_answers() -> None:
    """Nine common events of each setting are too few to call them equal; one more is enough."""
    kinds = [judged(CRASHES, losses)[0].kind for losses in ([0, 0], [9, 9], [10, 10], [10, 9], [60, 10])]
    assert kinds == ["undecided", "undecided", "equal", "undecided", "decided"]
    assert judged(INDEPENDENT, [20, 20])[0].kind == "undecided"


def test_reasons_of_equality_follow_from_the_parameters() -> None:
    def words(**base: object) -> str:
        study = study_of(base=BASE | base, sweep={"min_insync_replicas": [1, 2]})
        return text_of(judged(study, [20, 20])[0])

    assert "; kip-497 has no ELR, and elects the same broker with either min ISR." in words(generation="kip-497")
    assert "Eligible Leader Replicas (`generation: kip-966-elr`)" in words(generation="kip-497")
    assert "every crash takes the disk" in words(disk_loss_probability=1.0)
    shutdowns = words(unclean_probability=0.5)
    assert "every failure is a crash" not in shutdowns
    assert "Why: none of these failures strikes while the ISR is below the larger min ISR." in shutdowns
    releases = text_of(judged(study_of(base=BASE, sweep={"kafka_release": ["4.1.2", "4.4"]}), [20, 20])[0])
    assert "What would separate them: replicas that move while brokers are down (`reassignments`)." in releases
    acks = study_of(base=BASE | {"min_insync_replicas": 1}, sweep={"detection": ["1s", "9s"]})
    assert "Why: none of these failures brings into play what is decided by detection." in text_of(
        judged(acks, [20, 20])[0]
    )


def test_equality_under_some_assumptions_is_listed_as_such() -> None:
    """Trial by trial the same under the first preset, none seen under the second, a difference under the third."""
    verdict, _ = judged(WORLDS, [20, 20, 0, 0, 90, 10])
    assert plain(verdict.headline) == (
        "It depends on the assumptions: the study cannot tell with preset hdfs-2010; min ISR 1 and min ISR 2 do not "
        "differ with preset dean-first-year; run min ISR 2 with preset cloud-vm-5."
    )
    everywhere, _ = judged(WORLDS, [20, 20, 30, 30, 90, 90])
    assert everywhere.kind == "equal"
    assert plain(everywhere.headline) == (
        "min ISR 1 and min ISR 2 do not differ in loss events: the same failures cause them under any of the 3 "
        "assumptions."
    )


def unreliable(cells: Sequence[CellEstimates], index: int) -> list[CellEstimates]:
    """The cells as they are if the weights of the losses of one of them degenerate."""
    found, names = list(cells), [name for name in cells[0].estimates if name.endswith("loss_rate")]
    for name in names:
        found[index].estimates[name] = replace(found[index].estimates[name], degenerate=True, ci_low=0.0)  # type: ignore[index]
    for position, cell in enumerate(cells):
        for kind in ("compared_with_first", "compared_with_reference"):
            compared = getattr(cell, kind)
            for name in names if compared and (position == index or cell.reference or index == 0) else ():
                compared[name] = replace(compared[name], degenerate=True)
    return found


def test_an_estimate_of_degenerate_weights_is_not_printed_as_an_answer() -> None:
    one = study_of(base=BASE)
    verdict = judge(one, groups(one, unreliable(cells_of(one, [20]), 0)))
    assert re.fullmatch(
        r"the one setting: loss events not known, as the weights of the trials degenerate \(at most 0\.\d+ "
        r"per partition-year\)\.",
        plain(verdict.headline),
    )
    cells = unreliable(cells_of(CRASHES, [30, 29]), 0)
    found = groups(CRASHES, cells)
    text = text_of(judge(CRASHES, found))
    assert "The weights of the trials of min ISR 1 degenerate: there is an upper limit and no estimate" in text
    assert "min ISR 2 and min ISR 1 cannot be compared, as weights degenerate: 0.29 (" in text
    assert re.search(r" and not known \(at most 0\.\d+, weights degenerate\) per partition-year", text)
    assert "10,000,000" not in text
    (row,) = trade_offs(CRASHES, found[0])
    assert row.verdict.startswith("Loss events not comparable, as weights degenerate; ")


def test_less_of_a_time_is_no_price() -> None:
    """Min ISR 2 loses less, and is rejected for 7.39 days less."""
    verdict, (group,) = judged(PAIR, [90, 10], unwritable=[0.03, 0.03 - 7.39 / 365 / 0.999], offline=[1e-4, 1e-3])
    assert str(price(group.others[0], *PRICES[0])).startswith("writes fail for 7.39 d a year less (")
    (effect,) = [text for text in map(plain, verdict.sentences) if "lowers loss events" in text]
    assert " The price: the partition has no leader for 7.88 h a year more (" in effect
    assert " The gain: writes fail for 7.39 d a year less (" in effect
    assert effect.index("The price") < effect.index("The gain")
    assert "The price: the partition has no leader for" in plain(verdict.headline)
    assert "less" not in plain(verdict.headline)


def test_limits_of_degenerate_weights_show_no_price() -> None:
    _, (group,) = judged(CRASHES, [30, 10], unwritable=[1e-4, 1e-3])
    (other,) = group.others
    assert price(other, *PRICES[0]).kind == "more"
    compared = dict(other.estimates.compared_with_reference)
    compared["unwritable_fraction"] = replace(compared["unwritable_fraction"], degenerate=True)
    unknown = price(replace(other, estimates=replace(other.estimates, compared_with_reference=compared)), *PRICES[0])
    assert str(unknown) == ("the difference in the time that writes fail is not known, as weights degenerate")


def test_trials_until_a_loss_is_seen_follow_from_the_rough_rate() -> None:
    """By the rough rate, not by how a limit shrinks: 1 / (rate x partition-years seen) times as many."""
    study = study_of(base={"broker_mttf": "130d", "writeback": "never"}, sweep={"min_insync_replicas": [1, 2]})
    verdict, (group,) = judged(study, [0, 0])
    rate = max(rough_loss_rate(setting.parameters) for setting in group.settings)
    times = float(f"{1.0 / (rate * 100.0):.1e}")
    assert times > 1_000
    assert plain(verdict.headline).endswith(
        f"; by a rough count of failures that coincide, about {number(times)} times as many trials are needed to see "
        "one."
    )
    often = study_of(base={"broker_mttf": "1d", "broker_mttr": "1d"}, sweep={"min_insync_replicas": [1, 2]})
    assert "a rough count of failures that coincide expects about " in text_of(judged(often, [0, 0])[0])
    time = study_of(objective="stall_fraction", sweep={"detection": ["1s", "10s"]})
    assert "rough count" not in text_of(judged(time, [0, 0])[0])


def test_ruled_out_settings_are_named() -> None:
    assert headline(FOUR, [90, 10, 80, 9]).startswith(
        "This study cannot tell whether kip-497 · min ISR 2 or kip-966 · min ISR 2 loses acknowledged records least "
        "often. It rules out kip-497 · min ISR 1 and kip-966 · min ISR 1. About "
    )


@pytest.mark.slow
def test_recommendation_holds_under_its_assumptions_only() -> None:
    """How machines fail cannot be chosen: no preset is recommended over another."""
    verdict, found = judged(WORLDS, [90, 10, 50, 0, 0, 0])
    assert [group.name for group in found] == [
        f"preset {name}" for name in ("dean-first-year", "hdfs-2010", "cloud-vm-5")
    ]
    assert plain(verdict.headline) == (
        "It depends on the assumptions: the study cannot tell with preset cloud-vm-5; run min ISR 2 with preset "
        "dean-first-year or preset hdfs-2010."
    )
    assert verdict.kind == "undecided"
    page = render(record_of(WORLDS), cells_of(WORLDS, [90, 10, 50, 0, 0, 0]))
    assert "which is recommended with preset dean-first-year or preset hdfs-2010 only" in page
    everywhere = headline(WORLDS, [90, 10, 50, 0, 70, 0])
    assert everywhere.startswith("Run min ISR 2: it loses")
    assert everywhere.endswith("under each of the 3 assumptions.")
    nowhere, _ = judged(WORLDS, [10, 9, 5, 5, 0, 0])
    assert nowhere.kind == "undecided"
    assert "under any of its 3 assumptions" in plain(nowhere.headline)


def test_study_without_decisions_is_described() -> None:
    one = study_of(base=BASE)
    verdict, _ = judged(one, [20])
    assert verdict.kind == "described"
    assert plain(verdict.headline).startswith("the one setting: 0.2 (")
    rates = study_of(sweep={"broker_mttf": ["10d", "100d", "1y"]})
    assert headline(rates, [90, 20, 0]).startswith("Loss events: from none seen (at most 0.03) with MTTF 1y to 0.9 (")


def test_question_of_time_is_answered_in_time() -> None:
    study = study_of(objective="stall_fraction", sweep={"detection": ["1s", "10s"]})
    assert headline(study, [0, 0], stalled=[1e-6, 1e-5]).startswith(
        "Run detection 1s: it lets writes wait for a silent broker for the shortest time: 31.5 s ("
    )


def test_acks_1_is_compared_by_all_acknowledged_losses() -> None:
    study = study_of(base=BASE, sweep={"acks": ["all", 1]})
    verdict, _ = judged(study, [10, 90])
    assert plain(verdict.headline).startswith(
        "Run acks=all: it loses acknowledged records least often, whatever acks is: 0.1 ("
    )
    assert "acks=all instead of acks=1 lowers loss events of acknowledged records from 0.9 (" in text_of(verdict)


def test_rows_claim_what_their_intervals_show() -> None:
    """Where the intervals of the differences include 0, the row does not say that one is available less."""
    _, (group,) = judged(FOUR, [90, 80, 70, 10], offline=[1e-3] * 4, unwritable=[1.01e-3, 1e-3, 1e-3, 1e-3])
    rows = {row.setting.name: row for row in trade_offs(FOUR, group)}
    assert [row.setting.estimates.value("loss_rate") for row in rows.values()] == [0.7, 0.8, 0.9]
    assert rows["kip-497 · min ISR 2"].verdict == "Loses more; no difference in availability shown."
    assert rows["kip-497 · min ISR 1"].verdict == "Loses more; not writable longer."
    for row in rows.values():
        for words, found in (("offline", row.offline), ("not writable", row.unwritable)):
            assert (words in row.verdict) == (not found.ci_low <= 0.0 <= found.ci_high)


@pytest.mark.parametrize(("margin", "words"), [(None, "not told apart"), (3.0, "equivalent within 300 %")])
def test_equivalence_is_claimed_within_a_margin_only(margin: float | None, words: str) -> None:
    study = study_of(base=BASE, sweep={"min_insync_replicas": [1, 2]}, equivalence_margin=margin)
    _, (group,) = judged(study, [50, 49])
    (row,) = trade_offs(study, group)
    assert words in row.verdict.lower()


def test_frontier_has_the_settings_that_no_other_beats() -> None:
    _, (group,) = judged(FOUR, [90, 20, 90, 10], unwritable=[1e-4, 1e-3, 2e-4, 2e-3])
    every = [setting.name for setting in group.settings]
    assert [setting.name for setting in frontier(group.settings)] == every, (
        "90 losses of two settings are a tie, which their availability does not decide"
    )
    _, (group,) = judged(FOUR, [90, 20, 91, 10], unwritable=[1e-4, 1e-3, 2e-4, 1e-3])
    assert [setting.name for setting in frontier(group.settings)] == ["kip-497 · min ISR 1", "kip-966 · min ISR 2"]


def test_what_a_short_session_timeout_costs_is_said_to_be_missing() -> None:
    slow = {"per_year": 2, "duration": "10m", "delay": "20s"}
    assert not cautions(FOUR)
    (sentence,) = cautions(study_of(sweep={"detection": ["1s", "9s"]}))
    assert "what a short session timeout costs is not in these numbers" in sentence
    assert not cautions(study_of(base={"slow": slow}, sweep={"detection": ["1s", "9s"]}))
