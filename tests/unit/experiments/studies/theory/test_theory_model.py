"""The Markov model: values known from elsewhere, and the rules of each generation in small cases."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from experiments.studies.design.distribution import Distribution
from experiments.studies.design.impairments import SlowDisk
from experiments.studies.design.mappings import Burst
from experiments.studies.design.model import CellParameters
from experiments.studies.theory.answers import model_of, solved
from experiments.studies.theory.chain import gth
from experiments.studies.theory.model import Model, Shared
from experiments.studies.theory.partition import LOSS, Generation, Rules, Strategy


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


# -- shared failures ---------------------------------------------------------------------------------------------------

P, Q, T = 1e-7, 0.3, 2.0
"""The rate of power events, the probability that a broker loses its tail, the mean length of an outage."""


def _struck(generation: Generation, strategy: Strategy, min_isr: int, *shared: Shared, fail: float = 0.0) -> Model:
    rules = Rules(generation, strategy, min_isr)
    return Model(rules, 3, fail, repair=1.0, lossy=Q, shared=shared)


@pytest.mark.parametrize(
    ("generation", "strategy", "min_isr", "own_repairs", "with_the_power"),
    [
        ("kip-497", "balanced", 1, Q, Q),
        ("kip-497", "balanced", 2, Q, Q),
        ("kip-966-elr", "balanced", 2, Q, Q),
        ("kip-966", "balanced", 1, (Q + Q**2 + Q**3) / 3, Q**3),
        ("kip-966", "balanced", 2, Q**2 / 3 + Q**3 * 2 / 3, Q**3),
        ("kip-966", "balanced", 3, Q**3, Q**3),
        ("kip-966", "proactive", 3, Q, Q**3),
    ],
)
def test_what_a_power_event_of_all_brokers_loses(
    generation: Generation, strategy: Strategy, min_isr: int, own_repairs: float, with_the_power: float
) -> None:
    """All three replicas have what was acknowledged last, each loses it with probability q, independent of the others,
    and all are fenced, one after the other. To the first order in P, per event:

    - without recovery the one that was fenced last leads when it is back: q;
    - proactive recovery elects the first that is back, or the best of all if they are back together: q, q^3;
    - balanced recovery waits for those that left the ISR when it was below min ISR (the last 1, 2 or 3), and elects the
      best of all that are back then. Together: q^3. With repairs of their own, which end in any order: the last one is
      back first, second or third with probability 1/3 each, (q + q^2 + q^3) / 3; the third replica is back before the
      later of the last two with probability 2/3, q^2 / 3 + 2 q^3 / 3; all three, q^3.
    """
    for restore, expected in ((0.0, own_repairs), (1.0 / T, with_the_power)):
        found = solved(_struck(generation, strategy, min_isr, Shared(P, 3, Q, restore)))
        assert found["loss_rate"].value == pytest.approx(P * expected, rel=1e-5), restore


def test_outages_of_the_power_overlap() -> None:
    """At most two of load a = P T: none lasts for 1 / (1 + a + a^2 / 2) of the time. Brokers that fail on their own
    wait for their repair and for the power: with rare failures all are back with it."""
    a = 0.25
    found = solved(_struck("kip-497", "balanced", 3, Shared(a / T, 3, 0.0, 1.0 / T)))
    assert found["offline_fraction"].value == pytest.approx(1.0 - 1.0 / (1.0 + a + a * a / 2.0), rel=1e-12)
    assert found["loss_rate"].value == 0.0
    alone = solved(_struck("kip-497", "balanced", 3, Shared(a / T, 3, 0.0, 1.0 / T), fail=1e-6))
    assert alone["offline_fraction"].value == pytest.approx(found["offline_fraction"].value, rel=1e-4)


@pytest.mark.parametrize("generation", ["kip-497", "kip-966-elr"])
def test_what_bursts_of_two_of_three_lose(generation: Generation) -> None:
    """Bursts at rate B strike two of three, min ISR 1, repairs of mean 1. After a burst the third replica is the last
    member of the ISR until the first of the two is back, 1/2 on average; the next burst strikes it with probability
    2/3. Then one is down, 1 on average; the next burst strikes both others with probability 1/3, of which the one that
    is fenced last leads next. Either loses with probability q: B^2 q (1/2 x 2/3 + 1/3)."""
    rate = 1e-6
    found = solved(_struck(generation, "balanced", 1, Shared(rate, 2, Q)))
    assert found["loss_rate"].value == pytest.approx(rate**2 * Q * 2.0 / 3.0, rel=1e-4)


def test_with_min_isr_2_bursts_of_two_lose_only_what_is_not_on_disk_yet() -> None:
    """Nothing is acknowledged while two are down. Of the three cases above, the last member of the ISR is struck while
    what it has is not written back (rate w, against 2 repairs and B): w is fast, so a share 1/w of the 1/2 is left, in
    which the burst strikes it with probability 2/3; with one down writes go on, as above."""
    rate, written = 1e-6, 1e3
    model = replace(_struck("kip-497", "balanced", 2, Shared(rate, 2, Q)), write_back=written)
    expected = rate**2 * Q * (2.0 / 3.0 / (written + 2.0) + 1.0 / 3.0)
    assert solved(model)["loss_rate"].value == pytest.approx(expected, rel=1e-3)


def test_bursts_strike_the_replicas_among_more_brokers() -> None:
    """Three of five brokers, of which three have a replica: C(3, i) C(2, 3 - i) / C(5, 3) = 0.3, 0.6, 0.1; each of
    three with probability 1/2: 3/8, 3/8, 1/8."""
    for burst, brokers, chances in (
        (Burst(per_year=4.0, size=3, window_ms=0), 5, (0.3, 0.6, 0.1)),
        (Burst(per_year=4.0, fraction=0.5, window_ms=0), 3, (0.375, 0.375, 0.125)),
    ):
        model = model_of(CellParameters(brokers=brokers, detection_ms=None, burst=(burst,)))
        assert model is not None
        assert [each.size for each in model.shared] == [1, 2, 3]
        assert [each.rate for each in model.shared] == pytest.approx([4.0 * chance for chance in chances])


def test_shared_failures_that_the_model_lacks_are_not_covered() -> None:
    covered = CellParameters(detection_ms=None, power_events_per_year=1.0, power_mttr=Distribution(mean_ms=1_000))
    assert model_of(covered) is not None
    for changes in (
        {"detection_ms": 9_000},
        {"unclean_probability": 0.5},
        {"power_mttr": Distribution(dist="constant", mean_ms=1_000)},
        {"rack_power_events_per_year": 1.0},
        {"burst": (Burst(per_year=1.0, size=2, window_ms=0),)},
        {"slow_disk": (SlowDisk(per_year=1.0, duration=Distribution(mean_ms=1_000)),)},
    ):
        assert model_of(covered.model_copy(update=changes)) is None, changes
    for burst in (Burst(per_year=1.0, size=2), Burst(per_year=1.0, size=2, window_ms=0, same_rack=0.5)):
        assert model_of(CellParameters(detection_ms=None, burst=(burst,))) is None


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


# -- slow disks --------------------------------------------------------------------------------------------------------


def _slow_pair(generation: Generation, min_isr: int, begins: float, ends: float, fail: float = F) -> Model:
    """A pair of brokers; failures and followers that lag are noticed nearly at once."""
    rules = Rules(generation, "balanced", min_isr, phases=2)
    quick = 1e7
    return Model(rules, 2, fail, repair=1.0 / R, lossy=0.5, notice=quick, slow=begins, speed_up=ends, lag=quick)


def test_a_slow_leader_stalls_and_a_slow_follower_leaves_the_isr() -> None:
    """Nothing else fails, so the same one leads all the time. Slow disks of load a: none lasts for
    1 / (1 + a + a^2 / 2) of the time. Writes wait while the leader's disk is slow. They are refused while the
    follower's is, but for the case that it became slow after the leader, and the leader still is: it has nothing to
    append then, and does not lag. Both are slow for a^2 of the time, in half of which the leader was first."""
    load = 0.02
    found = solved(_slow_pair("kip-966-elr", 2, load, 1.0, fail=0.0))
    slow = 1.0 - 1.0 / (1.0 + load + load * load / 2.0)
    assert found["stall_fraction"].value == pytest.approx(slow, rel=1e-5)
    assert found["reject_fraction"].value == pytest.approx(slow - load**2 / 2.0, abs=load**3)
    assert found["offline_fraction"].value == 0.0


def test_a_follower_lags_for_two_stages() -> None:
    """It is slow for D on average and leaves the ISR after two stages at rate n: what is left is D (n D / (1 + n D))^2.
    Before, and all the time that the leader is slow, writes wait."""
    lag = 2.0
    rules = Rules("kip-966-elr", "balanced", min_isr=2, phases=2)
    found = solved(Model(rules, 2, fail=0.0, repair=1.0, notice=1.0, slow=L, speed_up=1.0 / D, lag=lag))
    left = D * (lag * D / (1.0 + lag * D)) ** 2
    assert found["reject_fraction"].value == pytest.approx(L * left, rel=1e-3)
    assert found["stall_fraction"].value == pytest.approx(L * (2.0 * D - left), rel=1e-3)


@pytest.mark.parametrize("generation", WITHOUT_AND_WITH_ELR)
def test_a_slow_follower_leaves_the_leader_alone_with_what_it_acknowledges(generation: Generation) -> None:
    """With min ISR 1 a broker is alone while the other is down, F R of the time for either of two, or while the
    follower is slow, L D. A slow leader acknowledges nothing, so that its crash loses nothing. A crash that loses the
    tail of the one that is alone comes at rate F / 2: (2 F R + L D) F / 2."""
    found = solved(_slow_pair(generation, 1, L, 1.0 / D))
    assert found["loss_rate"].value == pytest.approx((2.0 * F * R + L * D) * F * 0.5, rel=1e-3)


def test_a_slow_follower_leads_after_a_crash_only_if_it_is_eligible() -> None:
    """Min ISR 2, the follower is slow and out of the ISR (L D), the leader crashes (F). With ELR it leads at once;
    without, the partition waits for the last member of the ISR: R. In the other order, F R L for either of two, the one
    that is slow leads already. Both crashed: R, and 3 R / 2 with ELR, of 2 F R F."""
    without, elr = (solved(_slow_pair(name, 2, L, 1.0 / D))["offline_fraction"].value for name in WITHOUT_AND_WITH_ELR)
    assert without == pytest.approx(L * D * F * R + 2.0 * F * R * F * R, rel=1e-3)
    assert elr == pytest.approx(2.0 * F * R * F * 1.5 * R, rel=1e-3)
