"""Why records were lost and writes not taken: timelines by hand for each reason, and the sums over drawn ones.

Each case gives the failures of three brokers (broker 0 leads, two members make min ISR unless the case says otherwise)
and what has to come of them by the rules of the protocol, as the docstring of the case's test derives it.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from experiments.studies.design.distribution import Distribution
from experiments.studies.design.impairments import Isolation, Pause
from experiments.studies.design.mappings import CatchUp, SlowEpisodes
from experiments.studies.design.model import DAY_MS, CellParameters
from experiments.studies.design.recorded import AnyKind
from experiments.studies.failures.sources import Outage
from experiments.studies.failures.timeline import DrawnTimeline
from experiments.studies.trace.kinds import Attributed
from experiments.studies.trace.metrics import BY_NAME, measure
from experiments.studies.trace.reasons import Reason
from experiments.studies.trace.schema import YEAR_MS
from experiments.studies.trials.estimators import run_cell_trial
from experiments.studies.trials.reasons import LOSSES, TIMES, attributed
from experiments.studies.trials.trial import Trial, run_trial
from tests.synthetic_studies import cell_like

HOUR_MS = 3_600_000
BASE = CellParameters(generation="kip-497", duration_ms=24 * HOUR_MS, start="fresh", estimator="plain")
GENERATIONS = ("kip-497", "kip-966-elr", "kip-966")
ELR = GENERATIONS[1:]
NEVER_S = 10 * 3_600
_cell = partial(cell_like, BASE)


def _down(broker: int, at_s: float, for_s: float, kind: AnyKind = "unclean", cause: str = "broker") -> Outage:
    begins_ms = HOUR_MS + round(at_s * 1_000)
    return Outage(begins_ms, begins_ms + round(for_s * 1_000), broker, kind, cause)


def _attributed(cell: CellParameters, *outages: Outage) -> list[Attributed]:
    timeline = DrawnTimeline(cell, 1, outages=sorted(outages), own_failures=False)
    rows = attributed(cell, Trial(cell, 1, timeline).run())
    return [row.what for row in rows if isinstance(row.what, Attributed)]


def _loss(cell: CellParameters, *outages: Outage) -> tuple[str, str]:
    """Reason and causes of the one loss."""
    (found,) = (each for each in _attributed(cell, *outages) if each.metric == "loss_rate")
    return found.reason, found.causes


def _seconds(metric: str, cell: CellParameters, *outages: Outage) -> dict[str, float]:
    """The seconds of a share of time by reason, those of at least a second."""
    found = sorted(_milliseconds(metric, cell, *outages).items())
    return {reason: amount / 1_000 for reason, amount in found if amount >= 1_000}


def _milliseconds(metric: str, cell: CellParameters, *outages: Outage) -> Counter[str]:
    """The time of a share of time by reason."""
    total: Counter[str] = Counter()
    for each in _attributed(cell, *outages):
        total[each.reason] += each.amount if each.metric == metric else 0
    return total


# -- losses ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("generation", GENERATIONS)
def test_power_takes_the_tails_of_all_copies(generation: str) -> None:
    """The record acknowledged last is in three page caches, and all three machines lose their power."""
    power = [_down(broker, 0, 600, "lossy", "rack 0 power") for broker in range(3)]
    assert _loss(_cell(generation=generation), *power) == ("all-copies-lost", "3 x rack power (lossy)")


def _last_replica_standing() -> tuple[Outage, ...]:
    """Brokers 1 and 2 go down with the records; broker 0, alone in the ISR, loses its tail and comes back first. Its
    writes are refused meanwhile, so that the tail is of before."""
    return (
        _down(1, 0, NEVER_S),
        _down(2, 1, NEVER_S),
        _down(0, 12, 60, "lossy"),
    )


@pytest.mark.parametrize(
    ("generation", "reason"), [("kip-497", "isr-member-lost-tail"), ("kip-966-elr", None), ("kip-966", None)]
)
def test_the_last_replica_standing(generation: str, reason: str | None) -> None:
    """kip-497 elects the last member of the ISR. With the ELR broker 1 or 2 is eligible, and is awaited: no loss."""
    cell, outages = _cell(generation=generation, duration_ms=8 * HOUR_MS), _last_replica_standing()
    if reason is None:
        assert not [each for each in _attributed(cell, *outages) if each.metric in LOSSES.values()]
    else:
        assert _loss(cell, *outages) == (reason, "broker (lossy), 2 x broker (unclean)")


def test_all_members_of_the_elr_return_unclean_and_the_last_known_leader_has_lost_its_tail() -> None:
    """kip-966-elr: broker 0 loses its tail and is started; the others return unclean and leave the ELR, so the last
    leader is elected. Broker 2, which is the last of them to return, had kept the records."""
    found = _loss(
        _cell(generation="kip-966-elr"),
        _down(1, 0, 900),
        _down(2, 1, 900),
        _down(0, 12, 1_200, "lossy"),
    )
    assert found == ("last-known-leader-lost-tail", "broker (lossy), 2 x broker (unclean)")


@pytest.mark.parametrize("generation", ["kip-497", "kip-966-elr"])
def test_an_unclean_election_chooses_a_replica_behind(generation: str) -> None:
    """Broker 2 is away while writes go on. Then 0 and 1 go down, and 2 comes back alone."""
    cell = _cell(generation=generation, unclean_recovery_strategy="proactive")
    found = _loss(cell, _down(2, -600, 720), _down(0, 0, NEVER_S), _down(1, 1, NEVER_S))
    assert found[0] == "unclean-replica-behind"


def test_an_unclean_recovery_without_the_holder() -> None:
    """The same with KIP-966's recovery: it chooses among the logs of those that are alive."""
    cell = _cell(generation="kip-966", unclean_recovery_strategy="proactive")
    found = _loss(cell, _down(2, -600, 720), _down(0, 0, NEVER_S), _down(1, 1, NEVER_S))
    assert found[0] == "recovery-without-holder"


@pytest.mark.parametrize("generation", GENERATIONS)
def test_acks_1_loses_what_no_follower_had_fetched(generation: str) -> None:
    found = _attributed(_cell(generation=generation, acks="1"), _down(0, 0, 600))
    (loss,) = (each for each in found if each.metric == "acknowledged_loss_rate")
    assert (loss.reason, loss.causes, loss.events) == ("acks-1-not-replicated", "broker (unclean)", 1)


@pytest.mark.parametrize("generation", ["kip-497", "kip-966-elr"])
def test_an_unclean_election_chooses_a_replica_that_lost_its_tail(generation: str) -> None:
    """Broker 2 loses its tail in the ISR, and is back while the others, which have the records, stay down. No write is
    acknowledged meanwhile, so that it was not behind."""
    cell = _cell(generation=generation, unclean_recovery_strategy="proactive")
    found = _loss(cell, _down(2, 0, 600, "lossy"), _down(0, 1, NEVER_S), _down(1, 2, NEVER_S))
    assert found == ("unclean-replica-lost-tail", "broker (lossy), 2 x broker (unclean)")


SHORT_LOGS = (_down(2, -600, 800), _down(0, 0, 300, "lossy"), _down(1, 1, 300, "lossy"))


@pytest.mark.parametrize("strategy", ["balanced", "proactive"])
def test_an_unclean_recovery_finds_short_logs_only(strategy: str) -> None:
    """Nothing is written back, so that brokers 0 and 1 lose their whole logs. Broker 2, which was away meanwhile, has
    the longest of those that answer; no replica is down that has the records."""
    cell = _cell(generation="kip-966", unclean_recovery_strategy=strategy, writeback_ms=None)
    assert _loss(cell, *SHORT_LOGS) == ("recovery-short-logs", "2 x broker (lossy), broker (unclean)")


def test_power_takes_nothing_from_a_broker_that_was_shut_down() -> None:
    """Broker 2 flushes its log in a controlled shutdown, and loses its power afterwards: not all copies are lost when
    broker 0, alone in the ISR, comes back without its tail."""
    shut_down = (_down(2, 0, NEVER_S, "clean"), _down(1, 1, NEVER_S, "clean"))
    power = _down(2, 5, NEVER_S, "lossy", "rack 0 power"), _down(0, 12, 60, "lossy")
    reason, causes = _loss(_cell(generation="kip-497", duration_ms=8 * HOUR_MS), *shut_down, *power)
    assert (reason, causes) == ("isr-member-lost-tail", "broker (clean), broker (lossy), rack power (lossy)")


def test_v3_truncates_what_a_follower_had() -> None:
    """KIP-101: the record is acknowledged just before broker 1 fails, and the high watermark of broker 2, read from its
    disk, is below it. Broker 2 is restarted while its session lasts, follows broker 0, which is down since 3 s,
    and truncates to that high watermark. The session of 0 expires, and 2 is elected. No machine failed. With
    acks=all the acknowledged loss is that loss."""
    outages = (_down(1, 0, NEVER_S), _down(0, 3, NEVER_S), _down(2, 4, 1))
    found = [each for each in _attributed(_cell(generation="v3"), *outages) if each.metric in LOSSES.values()]
    assert {each.metric: each.reason for each in found} == dict.fromkeys(
        ("loss_rate", "acknowledged_loss_rate"), "truncated"
    )
    assert {each.causes for each in found} == {"3 x broker (unclean)"}


# -- outages -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("generation", GENERATIONS)
def test_detection(generation: str) -> None:
    """The crash of the leader, then of a follower, is noticed 6.75 to 9 s later."""
    cell = _cell(generation=generation)
    (leader,) = _seconds("stall_fraction", cell, _down(0, 0, 600)).items()
    (follower,) = _seconds("stall_fraction", cell, _down(2, 0, 600)).items()
    assert (leader[0], follower[0]) == ("leader-silent", "member-silent")
    assert 6.7 <= leader[1] <= 9.1
    assert 6.7 <= follower[1] <= 9.1


@pytest.mark.parametrize("generation", GENERATIONS)
def test_too_few_alive(generation: str) -> None:
    """Two of three are down for 10 min; after detection writes are refused, and fail if begun in all but the last 2
    min. A minute later one of them catches up for so long: it is alive, and not in sync."""
    cell = _cell(generation=generation)
    outages = (_down(1, 0, 600), _down(2, 0, 600))
    assert _seconds("unwritable_fraction", cell, *outages) == {"too-few-alive": pytest.approx(480, abs=0.2)}
    slow = _cell(generation=generation, catch_up=CatchUp(rate=25e6, write_rate=25e6))
    found = _seconds("reject_fraction", slow, *outages)
    assert found.keys() == {"too-few-alive", "catching-up"}
    assert found["too-few-alive"] == pytest.approx(600 - 8, abs=1.5)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_all_that_may_lead_are_down(generation: str) -> None:
    """All three are down from 0 s on, the first comes back after 10 min: no leader from detection until then."""
    found = _seconds("offline_fraction", _cell(generation=generation), *(_down(it, 0, 600 + it) for it in range(3)))
    assert found == {"eligible-down": pytest.approx(600 - 8, abs=2.5)}


def test_the_last_known_leader_is_awaited() -> None:
    """Broker 0 returns unclean at 72 s and leaves the ELR, so that broker 2 is awaited, which does at 901 s: the ELR is
    empty. The last leader, 0, has gone down again at 300 s, and is back at 1,800 s. With KIP-966's recovery the logs
    are asked for instead, in balanced mode those of the last known members of the ELR, 0 among them."""
    outages = (_down(1, 0, 900), _down(2, 1, 900), _down(0, 12, 60, "lossy"), _down(0, 300, 1_500))
    found = _seconds("offline_fraction", _cell(generation="kip-966-elr"), *outages)
    assert found["last-known-leader-down"] == pytest.approx(1_800 - 901, abs=3)
    assert found["eligible-down"] == pytest.approx(901 - 12 - 8, abs=3)
    waits = _seconds("offline_fraction", _cell(generation="kip-966"), *outages)
    assert waits["recovery-waits"] == pytest.approx(1_800 - 901, abs=3)


def test_a_slow_broker() -> None:
    """The only broker is slow from some time on: no failure, and yet writes wait."""
    slow = SlowEpisodes(per_year=20_000, duration=Distribution(dist="constant", mean_ms=HOUR_MS), delay_ms=40_000)
    alone = {"brokers": 1, "replication_factor": 1, "min_insync_replicas": 1}
    cell = _cell(detection_ms=600_000, slow=slow, duration_ms=4 * HOUR_MS, **alone)
    assert _seconds("stall_fraction", cell).keys() == {"slow"}


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("kind", ["isolated", "paused"])
def test_brokers_that_are_alive_and_cut_off(generation: str, kind: AnyKind) -> None:
    """The leader, and a follower, are cut off or paused for 10 min: noticed as a crash is. With two followers the ISR
    is too small from then on, though three brokers are alive."""
    cell = _cell(generation=generation)
    leader, follower, other = (_down(broker, 0, 600, kind, "rack 0 switch") for broker in range(3))
    assert _seconds("stall_fraction", cell, leader) == {"leader-cut-off": pytest.approx(8, abs=1.3)}
    assert _seconds("stall_fraction", cell, follower) == {"member-cut-off": pytest.approx(8, abs=1.3)}
    both = _seconds("reject_fraction", cell, follower, other)
    assert both["replicas-cut-off"] == pytest.approx(600 - 8, abs=1.5)
    assert both.keys() <= {"replicas-cut-off", "catching-up"}
    (causes,) = {each.causes for each in _attributed(cell, leader) if each.amount > 1_000}
    assert causes == f"rack switch ({kind})"


@pytest.mark.parametrize("generation", GENERATIONS)
def test_brokers_that_are_back_before_they_are_missed(generation: str) -> None:
    """A leader, and a follower, are down for 2 s. Their sessions, of 6.75 to 9 s, have to expire before they register
    again, so that writes wait for them though they run."""
    cell = _cell(generation=generation)
    leader, follower = (_seconds("stall_fraction", cell, _down(broker, 0, 2)) for broker in (0, 2))
    assert leader == {"leader-silent": 2.0, "leader-restarted": pytest.approx(6, abs=1.3)}
    assert follower == {"member-silent": 2.0, "member-returned": pytest.approx(6, abs=1.3)}


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("kind", ["isolated", "paused"])
def test_all_that_may_lead_are_alive_and_cut_off(generation: str, kind: AnyKind) -> None:
    """All three are for 10 min. From detection on none can be elected; afterwards the first heartbeat decides, which is
    sent once a quarter of the session of 9 s."""
    found = _seconds("offline_fraction", _cell(generation=generation), *(_down(it, 0, 600, kind) for it in range(3)))
    assert found.pop("eligible-cut-off") == pytest.approx(600 - 8, abs=1.3)
    assert found.keys() <= {"election"}
    assert sum(found.values()) <= 9 / 4 + 0.1


LATE_MS = 200
"""The latency of the network where messages are what is waited for."""


@pytest.mark.parametrize("generation", GENERATIONS)
def test_messages_of_an_election(generation: str) -> None:
    """The leader goes down: the message that another one leads takes 200 to 202 ms. All go down, and the first is back:
    it registers and is unfenced, two requests and their answers, of which the last is not waited for."""
    cell = _cell(generation=generation, network_latency_ms=LATE_MS)
    assert 200 <= _milliseconds("stall_fraction", cell, _down(0, 0, 600))["takeover"] <= 205
    found = _milliseconds("offline_fraction", cell, *(_down(it, 0, 600 + 100 * it) for it in range(3)))
    assert found["election"] >= 2 * LATE_MS


def test_messages_of_an_unclean_recovery() -> None:
    """All are alive while the logs are asked for: a request and an answer at least, and then the message to the leader,
    which reports its recovery only when it serves."""
    cell = _cell(generation="kip-966", writeback_ms=None, network_latency_ms=LATE_MS)
    assert _milliseconds("offline_fraction", cell, *SHORT_LOGS)["recovery-runs"] >= 2 * LATE_MS
    assert 200 <= _milliseconds("stall_fraction", cell, *SHORT_LOGS)["leader-recovers"] <= 205


# -- sums --------------------------------------------------------------------------------------------------------------


def _harsh(**changes: object) -> CellParameters:
    return CellParameters.model_validate(
        {
            "generation": "kip-966",
            "duration_ms": 40 * DAY_MS,
            "broker_mttf": Distribution(mean_ms=DAY_MS),
            "broker_mttr": Distribution(mean_ms=2 * HOUR_MS),
            "tail_loss_probability": 0.5,
            "unclean_probability": 0.8,
            "power_events_per_year": 20,
            "estimator": "plain",
        }
        | changes
    )


def _check_sums(cell: CellParameters, seed: int) -> Counter[str]:
    """The events and minutes of all reasons add up to those that the trial measured; the events by reason."""
    rows = attributed(cell, run_trial(cell, seed))
    found = [row.what for row in rows if isinstance(row.what, Attributed)]
    measures, by_reason = measure(rows), Counter[str]()
    for name in (*TIMES, *LOSSES.values()):
        column = BY_NAME[name].column
        own = [each for each in found if each.metric == name]
        assert sum(each.events for each in own) == measures.events[column], name
        if name in TIMES:
            assert sum(each.amount for each in own) / YEAR_MS == pytest.approx(measures.values[column]), name
        by_reason.update({each.reason for each in own})
    return by_reason


@pytest.mark.parametrize("acks", ["all", "1"])
@pytest.mark.parametrize("strategy", ["balanced", "proactive"])
@pytest.mark.parametrize("generation", GENERATIONS)
def test_every_loss_and_minute_has_a_reason(generation: str, strategy: str, acks: str) -> None:
    cell, reasons = _harsh(generation=generation, acks=acks, unclean_recovery_strategy=strategy), Counter[str]()
    for seed in range(2):
        reasons += _check_sums(cell, seed)
    assert Reason.UNATTRIBUTED.key not in reasons
    assert len(reasons) > 5


@pytest.mark.parametrize("generation", GENERATIONS)
def test_every_loss_and_minute_has_a_reason_among_impairments(generation: str) -> None:
    impairments = {
        "isolated": (Isolation(of="broker", per_year=200, duration=Distribution(mean_ms=HOUR_MS)),),
        "paused": (Pause(of="broker", per_year=200, duration=Distribution(mean_ms=HOUR_MS)),),
    }
    assert Reason.UNATTRIBUTED.key not in _check_sums(
        _harsh(generation=generation, duration_ms=12 * DAY_MS, **impairments), 2
    )


def test_every_loss_and_minute_of_v3_has_a_reason() -> None:
    assert Reason.UNATTRIBUTED.key not in _check_sums(_harsh(generation="v3"), 1)


@pytest.mark.parametrize("estimator", ["importance", "splitting"])
def test_weighted_trials_weigh_their_reasons(estimator: str) -> None:
    """The weights of the losses' reasons are those of the losses."""
    cell = _harsh(generation="kip-497", duration_ms=10 * DAY_MS, estimator=estimator)
    rows = run_cell_trial(cell, 3).rows
    lost = [row.log_weight for row in rows if type(row.what) in LOSSES]
    found = [row.log_weight for row in rows if isinstance(row.what, Attributed) and row.what.metric in LOSSES.values()]
    assert lost
    assert sorted(found) == sorted(lost)
