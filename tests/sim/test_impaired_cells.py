"""Shares of time under impairments against renewal theory, and what impaired brokers cost by hand.

A pair of brokers with min ISR 2 refuses writes while either is out of the ISR. Isolations of a broker begin at rate l
and last d on average, so that at a random time none lasts with probability exp(-l d) (the queue M/G/infinity: Takacs,
Introduction to the Theory of Queues, 1962, chapter 3); so do pauses while the process runs. A broker that crashes m
after its start on average, and needs r, runs for m / (m + r) of the time. Causes and brokers are independent, and a
broker that is out for two causes is out once: writes are refused for 1 - (product of these shares) ^ 2 of the time.

Each time out begins late, when the session of 9 s has expired (6.75 to 9 s), and ends late, by a heartbeat and a fetch
(at most 9 s): the share lies within one of 9 s each, which is up to 2 x 9 s times the rate of beginnings.
"""

from __future__ import annotations

import math
from functools import partial
from statistics import fmean, stdev

import pytest

from experiments.studies.design.distribution import Distribution
from experiments.studies.design.impairments import ImpairmentKind, Isolation, Pause, SlowDisk
from experiments.studies.design.model import DAY_MS, CellParameters
from experiments.studies.design.recorded import OutageKind
from experiments.studies.failures.sources import Outage
from experiments.studies.failures.timeline import DrawnTimeline
from experiments.studies.theory.validation import ValidationCell, validate
from experiments.studies.trace.kinds import Crash, Impaired, Restored
from experiments.studies.trace.metrics import measure
from experiments.studies.trace.schema import YEAR_MS
from experiments.studies.trials.trial import Trial, run_through, run_trial
from tests.synthetic_studies import cell_like
from tests.trace_rows import as_rows, check_trace

HOUR_MS = 3_600_000
PER_YEAR, LASTS_S, MTTF_S = 20_000.0, 300, 1_800
LASTS = Distribution(mean_ms=1_000 * LASTS_S)
ISOLATED = (Isolation(per_year=PER_YEAR, duration=LASTS),)
PAUSED = (Pause(per_year=PER_YEAR, duration=LASTS),)
PAIR = CellParameters(
    brokers=2, replication_factor=2, broker_mttf=None, broker_mttr=LASTS, duration_ms=DAY_MS, estimator="plain"
)
CRASHES = Distribution(mean_ms=1_000 * MTTF_S)
BY_HAND = CellParameters(duration_ms=24 * HOUR_MS, start="fresh", broker_mttf=None, estimator="plain")

_pair, _cell = partial(cell_like, PAIR), partial(cell_like, BY_HAND)


def _whole(cell: CellParameters) -> tuple[float, float]:
    """The share of time in which a broker of the cell is not out, and how often per second it goes out."""
    rate = PER_YEAR * 1_000 / YEAR_MS
    causes = len(cell.isolated) + len(cell.paused)
    share, begins = math.exp(-causes * rate * LASTS_S), causes * rate
    if cell.broker_mttf is not None:
        share, begins = share * MTTF_S / (MTTF_S + LASTS_S), begins + 1.0 / MTTF_S
    return share, share * begins


@pytest.mark.parametrize(
    ("cell", "trials"),
    [
        (_pair(isolated=ISOLATED), 6),
        (_pair(paused=PAUSED), 16),
        (_pair(broker_mttf=CRASHES), 16),
        (_pair(isolated=ISOLATED, paused=PAUSED, broker_mttf=CRASHES), 4),
    ],
    ids=["isolated", "paused", "crashes", "all"],
)
def test_the_share_of_time_in_which_a_broker_of_two_is_out_is_that_of_renewal_theory(
    cell: CellParameters, trials: int
) -> None:
    shares = [
        found.values["refuses"] / found.exposure for found in (measure(run_trial(cell, s).rows) for s in range(trials))
    ]
    share, begins = _whole(cell)
    expected, error = 1.0 - share**2, stdev(shares) / math.sqrt(trials)
    late = 2.0 * share * begins * 9.0
    assert abs(fmean(shares) - expected) < late + 3.5 * error, (fmean(shares), expected, error)
    assert error < 0.15 * expected


def test_a_pair_that_crashes_and_is_paused_has_the_losses_and_shares_of_the_markov_chain() -> None:
    """`theory/model.py` has the late beginnings (two stages of 7/8 of the session in all), which renewal theory leaves
    out: 0.458 of the time refused, and not 0.498. Its loss rate counts who holds what when a paused broker crashes."""
    cell = _pair(
        generation="kip-966-elr",
        broker_mttf=CRASHES,
        paused=PAUSED,
        tail_loss_probability=0.5,
        writeback_ms=None,
    )
    found = validate([ValidationCell({}, cell, 12)], jobs=1)
    assert {"loss_rate", "reject_fraction", "stall_fraction", "offline_fraction"} <= {each.metric for each in found}
    assert all(each.agrees for each in found), found
    assert {each.metric: each.markov for each in found}["reject_fraction"] == pytest.approx(0.458, abs=0.001)


def test_a_pair_with_slow_disks_has_the_shares_of_the_markov_chain() -> None:
    """Writes wait for a slow leader also after its restart, and where it was elected since it is slow."""
    cell = _pair(
        generation="kip-966-elr",
        broker_mttf=CRASHES,
        slow_disk=(SlowDisk(per_year=PER_YEAR, duration=LASTS),),
        tail_loss_probability=0.5,
        writeback_ms=None,
    )
    found = validate([ValidationCell({}, cell, 4)], jobs=1)
    assert {"reject_fraction", "stall_fraction"} <= {each.metric for each in found}
    assert all(each.agrees for each in found), found
    assert {each.metric: each.markov for each in found}["stall_fraction"] == pytest.approx(0.1756, abs=0.001)


# -- one impairment by hand --------------------------------------------------------------------------------------------

Found = dict[str, float]


def _lasts(broker: int, at_s: float, for_s: float, kind: OutageKind | ImpairmentKind) -> Outage:
    begins_ms = HOUR_MS + round(at_s * 1_000)
    return Outage(begins_ms, begins_ms + round(for_s * 1_000), broker, kind, "test")


def _seconds(cell: CellParameters, *outages: Outage) -> Found:
    """The metrics of the trial, shares of time in seconds."""
    timeline = DrawnTimeline(cell, 1, outages=sorted(outages), own_failures=False)
    found = measure(Trial(cell, 1, timeline).run().rows).values
    counted = ("losses", "unclean_recoveries")
    return {name: value if name in counted else value * YEAR_MS / 1_000 for name, value in found.items()}


FENCED, LAGS, NEVER, ALWAYS = (6.7, 9.1), (29.9, 45.2), (0.0, 0.1), (599.9, 600.1)
"""Seconds until a broker is fenced, or has lagged for `replica.lag.time.max.ms`, which is looked at every 15 s."""


@pytest.mark.parametrize(
    ("kind", "leader", "follower"),
    [
        ("isolated", FENCED, FENCED),
        ("isolated-out", FENCED, FENCED),
        ("isolated-all", FENCED, FENCED),
        ("isolated-in", ALWAYS, LAGS),
        ("isolated-brokers", (29.9, 75.2), LAGS),
        ("isolated-controllers", NEVER, NEVER),
        ("isolated-clients", ALWAYS, NEVER),
        ("paused", FENCED, FENCED),
        ("slow-disk", ALWAYS, LAGS),
    ],
)
def test_writes_wait_for_an_impaired_broker_until_another_part_of_the_cluster_notices(
    kind: ImpairmentKind, leader: tuple[float, float], follower: tuple[float, float]
) -> None:
    """10 minutes of the leader or of a follower, of three replicas. A broker whose heartbeats do not arrive is fenced;
    one whose heartbeats do (`in`, `brokers`, `slow-disk`) keeps its leadership and serves no write until the end, and
    as a follower leaves the ISR when it lags. A leader without the controller is replaced while it still serves; one
    without the brokers refuses writes at once when they have left the ISR, until the end; the write under way before
    that has to time out, after up to 30 s."""
    for broker, (low_s, high_s) in ((0, leader), (2, follower)):
        found = _seconds(_cell(), _lasts(broker, 0, 600, kind))
        assert low_s <= found["stalled"] <= high_s, (broker, found)
        refused = 600 - found["stalled"] if (kind, broker) == ("isolated-brokers", 0) else 0.0
        assert found["refuses"] >= refused - 0.1, (broker, found)
        assert found["unwritable"] == pytest.approx(480.0 if low_s > 120 or refused else 0.0, abs=0.1), (broker, found)


def test_a_pause_that_is_shorter_than_the_session_delays_writes_by_its_length() -> None:
    """5 s, of which a producer that gives up after 1 s loses the writes of the first 4 s."""
    for broker in (0, 2):
        found = _seconds(_cell(delivery_timeout_ms=1_000), _lasts(broker, 0, 5, "paused"))
        assert (found["stalled"], found["unwritable"]) == pytest.approx((5.0, 4.0), abs=0.1)


@pytest.mark.parametrize("kind", ["slow-disk", "isolated-clients"])
def test_writes_wait_for_a_broker_that_is_restarted_while_it_is_impaired(kind: ImpairmentKind) -> None:
    """The only replica is impaired for 10 minutes, and crashes after 1, for 1. Until the crash is noticed, 6.75 to 9 s,
    and from its restart at 120 s on it is the leader that writes wait for: 60 + 6.75 to 9 + 480 s. They fail once they
    have waited for 2 minutes, from the beginning: 480 s, all of them with that leader, and not as the ISR is too small.
    """
    cell = _cell(brokers=1, replication_factor=1, min_insync_replicas=1)
    found = _seconds(cell, _lasts(0, 0, 600, kind), _lasts(0, 60, 60, "unclean"))
    assert 546.7 <= found["stalled"] <= 549.1
    assert found["offline"] == pytest.approx(600.0 - found["stalled"], abs=0.1)
    assert found["unwritable"] == pytest.approx(480.0, abs=0.1)
    assert (found["unwritable_isr"], found["unwritable_refused"]) == pytest.approx((480.0, 0.0), abs=0.1)


def test_writes_wait_for_a_slow_leader_that_is_elected_while_its_disk_is_slow() -> None:
    """A follower of two is slow for 10 minutes and out of the ISR after 30 to 45 s. The leader crashes at 100 s, for
    100 s. The follower is in the ELR, leads, and refuses nothing: what it is sent waits for its disk, until 600 s."""
    cell = _cell(brokers=2, replication_factor=2, min_insync_replicas=2, generation="kip-966-elr")
    found = _seconds(cell, _lasts(1, 0, 600, "slow-disk"), _lasts(0, 100, 100, "unclean"))
    assert LAGS[0] + 500.0 - FENCED[1] <= found["stalled"] <= LAGS[1] + 500.0
    assert found["unwritable_isr"] == pytest.approx(480.0, abs=0.1)
    assert found["losses"] == 0.0


@pytest.mark.parametrize(("generation", "offline_s"), [("kip-497", 7_200 - 8), ("kip-966-elr", 1_740 - 8)])
def test_followers_that_were_isolated_lead_with_elr_and_wait_for_the_leader_without(
    generation: str, offline_s: int
) -> None:
    """Both followers are cut off for 30 minutes; a minute later the leader crashes for 2 hours, and the page cache of
    its machine is lost. With min ISR 2 nothing was acknowledged since: the first follower that is back has all records.
    It is in the ELR; without one only the last member of the ISR may lead, two hours later. Neither loses a record."""
    cell = _cell(generation=generation)
    cut_off = [_lasts(broker, 0, 1_800, "isolated") for broker in (1, 2)]
    found = _seconds(cell, *cut_off, _lasts(0, 60, 7_200, "lossy"))
    assert found["offline"] == pytest.approx(offline_s, abs=6.0), found
    assert (found["losses"], found["unclean_recoveries"]) == (0.0, 0.0)


def test_brokers_of_one_isolation_reach_each_other_and_those_of_two_do_not() -> None:
    """Two of three replicas are cut off from the controller and the third, the leader, for 10 minutes: fenced, they are
    out of the ISR. Cut off from the brokers alone the two of one rack are as far from the leader as those of two."""
    kinds: tuple[ImpairmentKind, ...] = ("isolated", "isolated-brokers")
    for kind in kinds:
        found = _seconds(_cell(), *(_lasts(broker, 0, 600, kind) for broker in (1, 2)))
        assert found["refuses"] == pytest.approx(600 - (8 if kind == "isolated" else 37.5), abs=9.0), found
    together = [_lasts(broker, 0, 600, "isolated-brokers") for broker in (0, 1)]
    apart = [together[0], together[1]._replace(cause="another")]
    assert _seconds(_cell(), *together)["refuses"] < 0.1, "the leader and a follower are two, and min ISR is 2"
    assert _seconds(_cell(), *apart)["refuses"] > 500


def test_an_impairment_lasts_through_crashes_and_a_pause_ends_with_the_process() -> None:
    """Broker 2 is isolated for 10 minutes and paused for 5; after a minute it crashes for 1 minute."""
    cell = _cell()
    outages = (_lasts(2, 0, 600, "isolated"), _lasts(2, 0, 300, "paused"), _lasts(2, 60, 60, "unclean"))
    timeline = DrawnTimeline(cell, 1, outages=sorted(outages), own_failures=False)
    rows = as_rows(Trial(cell, 1, timeline).run().rows)
    check_trace(rows, 1, cell.duration_ms)
    kinds = (Crash.KIND, Impaired.KIND, Restored.KIND)
    changes = [((row.time_ms - HOUR_MS) // 1_000, row.kind, row.detail, row.cause) for row in rows if row.kind in kinds]
    assert changes == [
        (0, Impaired.KIND, "paused", "test"),
        (0, Impaired.KIND, "isolated", "test"),
        (60, Crash.KIND, "unclean", "test"),
        (60, Restored.KIND, "paused", "test"),
        (600, Restored.KIND, "isolated", "test"),
    ]
    out = [row for row in rows if row.kind == "state" and "2" not in row.isr.split(",")]
    assert 7 <= (out[0].time_ms - HOUR_MS) / 1_000 <= 9.1
    back = next(row for row in rows if row.kind == "state" and row.time_ms > out[-1].time_ms)
    assert 600 <= (back.time_ms - HOUR_MS) / 1_000 <= 610, "after its restart it is still isolated"


def test_two_causes_of_one_level_have_streams_and_names_of_their_own() -> None:
    """A second cause leaves the events of the first one as they are, and the rows tell them apart."""

    def causes(*isolated: Isolation) -> list[tuple[int, str]]:
        cell = _pair(racks=2, isolated=isolated)
        timeline = DrawnTimeline(cell, 3)
        events = iter(timeline.next_event, None)
        return [(event.time_ms, event.cause) for event in (next(events) for _ in range(400)) if not event.ends]

    switch = Isolation(name="switch", of="rack", per_year=900.0, duration=LASTS)
    firewall = Isolation(name="firewall", of="rack", per_year=600.0, duration=LASTS, peers="controllers")
    alone, both = causes(switch), causes(switch, firewall)
    assert {cause for _, cause in both} == {f"rack {r} {name}" for r in (0, 1) for name in ("switch", "firewall")}
    of_switch = [event for event in both if "switch" in event[1]]
    assert of_switch == alone[: len(of_switch)]
    assert len(of_switch) / len(both) == pytest.approx(0.6, abs=0.1)


def test_compressed_time_gives_the_same_share_of_long_impairments() -> None:
    """60 times as fast, an isolation of 10 hours lasts 10 minutes of the cluster, in which sessions take 9 s."""
    cell = _pair(time_compression=60.0, duration_ms=48 * HOUR_MS, start="fresh", min_insync_replicas=2)
    timeline = DrawnTimeline(cell, 1, outages=[_lasts(1, 0, 36_000, "isolated")], own_failures=False)
    found = measure(run_through(cell, 1, lambda: timeline).rows)
    assert found.values["refuses"] * YEAR_MS / 1_000 == pytest.approx(36_000, abs=60 * 9)
