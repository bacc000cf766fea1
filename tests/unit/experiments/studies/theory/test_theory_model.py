"""The Markov model: values known from elsewhere, and the rules of each generation in small cases."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from experiments.studies.theory.answers import solved
from experiments.studies.theory.chain import gth
from experiments.studies.theory.model import LOSS, Generation, Model, Rules, Strategy


def _model(
    generation: Generation,
    strategy: Strategy = "balanced",
    replicas: int = 3,
    min_isr: int = 2,
    unclean: float = 1.0,
    lossy: float = 0.5,
    flushes: bool = True,
) -> Model:
    rules = Rules(generation, strategy, min_isr, loses=unclean * lossy > 0, flushes=flushes)
    return Model(rules, replicas, fail=0.1, repair=1.0, unclean=unclean, lossy=lossy)


@pytest.mark.parametrize(
    ("generation", "refused", "offline"),
    [("kip-497", 0.02394, 0.002176), ("kip-966-elr", 0.02329, 0.001109), ("kip-966", 0.02329, 0.001109)],
)
def test_known_fractions_where_every_shutdown_is_clean(generation: Generation, refused: float, offline: float) -> None:
    found = solved(_model(generation, unclean=0.0))
    assert found["reject_fraction"].value == pytest.approx(refused, rel=2.5e-4)
    assert found["offline_fraction"].value == pytest.approx(offline, rel=2.5e-4)


def test_known_mean_time_to_the_first_loss_without_elr() -> None:
    """Counted when the last copy is lost: the chain counts the loss one mean repair later, when that replica leads."""
    model = _model("kip-497", unclean=0.1, lossy=1.0, flushes=False)
    assert model.chain().mean_time_to(LOSS) - 1.0 == pytest.approx(4.604e3, rel=1e-4)


@pytest.mark.parametrize("generation", ["kip-966-elr", "kip-966"])
def test_known_mean_time_to_the_first_loss_with_elr(generation: Generation) -> None:
    model = _model(generation, unclean=0.1, lossy=1.0, flushes=False)
    assert model.chain().mean_time_to(LOSS) == pytest.approx(4.523e4, rel=1.2e-4)


def test_refused_is_binomial_where_every_running_replica_is_in_sync() -> None:
    found = solved(_model("kip-966", "proactive", replicas=5, min_isr=3))
    up = 1 / 1.1
    expected = sum(math.comb(5, count) * up**count * (1 - up) ** (5 - count) for count in range(3))
    assert found["reject_fraction"].value == pytest.approx(expected, rel=1e-12)
    assert found["offline_fraction"].value == pytest.approx((1 - up) ** 5, rel=1e-12)


def test_loss_at_real_rates_is_exact() -> None:
    """MTTF 130 d, MTTR 15 min: about 5e-9 losses per year, against the same chain solved with rationals."""
    model = Model(Rules("kip-497", "balanced", min_isr=2), 3, fail=365 / 130, repair=365 * 96.0, lossy=0.1)
    chain = model.chain()
    size = len(chain.states)
    rates = np.array([[Fraction(0)] * size for _ in range(size)], dtype=object)
    for source, target, rate in zip(chain.sources, chain.targets, chain.rates, strict=True):
        rates[source, target] += Fraction(float(rate))
    exact = gth(rates)
    losses = [i for i, events in enumerate(chain.events) if LOSS in events]
    expected = sum(exact[chain.sources[i]] * Fraction(float(chain.rates[i])) for i in losses)
    assert solved(model)["loss_rate"].value == pytest.approx(float(expected), rel=1e-13, abs=0.0)
    assert float(expected) == pytest.approx(3 * model.fail**3 / model.repair**2 * model.lossy, rel=1e-3)


@pytest.mark.parametrize(
    ("generation", "strategy"),
    [("kip-497", "balanced"), ("kip-966-elr", "balanced"), ("kip-966", "balanced"), ("kip-966", "proactive")],
)
def test_nothing_is_lost_where_no_failure_loses_a_log_and_recovery_waits_for_complete_ones(
    generation: Generation, strategy: Strategy
) -> None:
    found = solved(_model(generation, strategy, lossy=0.0))
    assert (found["loss_rate"].value > 0.0) is (strategy == "proactive")


def test_a_second_loss_needs_new_acknowledgements() -> None:
    """With min ISR 3 of 3, every failure stops the writes. Where every failure loses everything, what was acknowledged
    is lost once, when a leader starts empty, and then again only after all three have been in sync: no generation or
    strategy makes a difference."""
    rates = {
        (generation, strategy): solved(_model(generation, strategy, min_isr=3, lossy=1.0))["loss_rate"].value
        for generation in ("kip-497", "kip-966-elr", "kip-966")
        for strategy in ("proactive", "balanced")
    }
    naive = 3 * 0.1 * (0.1 / 1.1) ** 2 * (1 / 1.1)
    assert max(rates.values()) < naive


def test_balanced_recovery_finds_complete_logs() -> None:
    """The last known leader alone may have lost its log while another member of the last known ELR holds everything."""
    alone, balanced = (
        solved(_model(generation, lossy=0.1))["loss_rate"].value for generation in ("kip-966-elr", "kip-966")
    )
    assert balanced < 0.15 * alone


def test_what_a_clean_shutdown_flushes_is_not_lost() -> None:
    with_flush, without = (
        solved(_model("kip-966", min_isr=3, unclean=0.5, lossy=1.0, flushes=flushes))["loss_rate"].value
        for flushes in (True, False)
    )
    assert with_flush < 0.9 * without


@pytest.mark.parametrize("min_isr", [1, 3])
def test_leaving_out_partly_flushed_logs_changes_little(min_isr: int) -> None:
    model = _model("kip-966", min_isr=min_isr, unclean=0.5)
    coarse = replace(model, rules=replace(model.rules, partly=False))
    assert len(coarse.chain().states) < 0.2 * len(model.chain().states)
    for name, answer in solved(model).items():
        assert solved(coarse)[name].value == pytest.approx(answer.value, rel=1e-9)


def test_detection_delays_fencing_and_stalls_the_partition() -> None:
    """Writes wait for a broker of the ISR until its failure is noticed: rate of failures of all three replicas times
    mean time."""
    mean = 0.01
    instant = Model(Rules("kip-966", "balanced", min_isr=2), 3, fail=0.001, repair=1.0, lossy=0.5)
    delayed = replace(instant, rules=replace(instant.rules, phases=1), notice=1 / mean)
    assert solved(delayed)["stall_fraction"].value == pytest.approx(3 * 0.001 * mean, rel=0.02)
    assert solved(delayed)["reject_fraction"].value < solved(instant)["reject_fraction"].value


# -- impaired brokers --------------------------------------------------------------------------------------------------

F, R, L, D = 1e-5, 1.0, 2e-5, 3.0
"""Rates of crashes, mean repair, rates of impairments, their mean length."""
WITHOUT_AND_WITH_ELR: tuple[Generation, Generation] = ("kip-497", "kip-966-elr")


def _pair(generation: Generation, min_isr: int, kind: str, begins: float, ends: float, fail: float = F) -> Model:
    """A pair of brokers whose failures are noticed nearly at once; `kind`: of the impairments."""
    model = Model(Rules(generation, "balanced", min_isr, phases=1), 2, fail, repair=1.0 / R, lossy=0.5, notice=1e7)
    if kind == "paused":
        return replace(model, pauses=begins, resume=ends)
    return replace(model, isolations=begins, reconnect=ends)


@pytest.mark.parametrize("kind", ["isolated", "paused"])
def test_a_pair_refuses_writes_while_an_impairment_of_either_lasts(kind: str) -> None:
    """At most two at a time of load a: none lasts for 1 / (1 + a + a^2 / 2) of the time (Erlang's loss formula), which
    is exp(-a), that of any number, but for a^3 / 6. With min ISR 2 both have to be whole."""
    load = 0.2
    found = solved(_pair("kip-966-elr", 2, kind, load, 1.0, fail=0.0))
    whole = 1.0 / (1.0 + load + load * load / 2.0)
    assert whole == pytest.approx(math.exp(-load), abs=load**3 / 6.0)
    assert found["reject_fraction"].value == pytest.approx(1.0 - whole**2, rel=1e-5)
    assert found["loss_rate"].value == 0.0


def test_an_impairment_is_noticed_after_two_stages() -> None:
    """It lasts for D on average and is noticed after two stages at rate n: what is left is D (n D / (1 + n D))^2."""
    notice = 2.0
    rules = Rules("kip-966-elr", "balanced", min_isr=2, phases=2)
    found = solved(Model(rules, 2, fail=0.0, repair=1.0, notice=notice, isolations=L, reconnect=1.0 / D))
    left = D * (notice * D / (1.0 + notice * D)) ** 2
    assert found["reject_fraction"].value == pytest.approx(2.0 * L * left, rel=1e-3)
    assert found["stall_fraction"].value == pytest.approx(2.0 * L * (D - left), rel=1e-3)


@pytest.mark.parametrize("kind", ["isolated", "paused"])
@pytest.mark.parametrize("generation", ["kip-497", "kip-966-elr"])
def test_the_last_member_of_the_isr_loses_what_it_alone_has(generation: Generation, kind: str) -> None:
    """With min ISR 1 a broker is alone while the other is down (F R of the time) or impaired (L D), and goes on
    acknowledging; a crash that loses its tail, at rate F / 2, loses records. To the first order, for either of two."""
    assert solved(_pair(generation, 1, kind, L, 1.0 / D))["loss_rate"].value == pytest.approx(
        2.0 * (F * R + L * D) * F * 0.5, rel=1e-3
    )


def test_who_leads_when_one_is_isolated_and_the_other_crashes() -> None:
    """To the first order, min ISR 2, A goes first, B is then the only member of the ISR. Without ELR the partition
    waits for B, whatever it is out for: R after a crash, D after an isolation. With ELR, A and B are in it:

    - A isolated, B crashed (rate 2 L D F): A stays eligible, and B, back from a crash, does not: until A is back, D.
    - A crashed, B isolated (2 F R L): B is eligible, A is not: D.
    - Both isolated (2 L D L): until the first is back, D / 2.
    - Both crashed (2 F R F): once both are back the ELR is empty, and B, the last leader, leads: the longer of two
      repairs, 3 R / 2.
    """
    without, elr = (
        solved(_pair(name, 2, "isolated", L, 1.0 / D))["offline_fraction"].value for name in WITHOUT_AND_WITH_ELR
    )
    pairs = 2 * L * D * F, 2 * F * R * L, 2 * L * D * L, 2 * F * R * F
    assert without == pytest.approx(np.dot(pairs, (R, D, D, R)), rel=1e-3)
    assert elr == pytest.approx(np.dot(pairs, (D, D, D / 2, 1.5 * R)), rel=1e-3)
