"""Failure models by name: calibrations with their source, their numbers, and what each leaves out.

A preset gives values to parameters; a study's own values override them. Numbers are rates per machine as published.
Where a source gives no number, `assumed` says what was taken instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from experiments.studies.design.distribution import Distribution
from experiments.studies.design.mappings import Burst

MINUTE_MS, HOUR_MS, DAY_MS, YEAR_MS = 60_000, 3_600_000, 86_400_000, 365 * 86_400_000

PresetName = Literal[
    "none", "ford-2010", "dean-first-year", "hdfs-2010", "cloud-vm-1", "cloud-vm-5", "weekly-crash", "preemptible"
]


@dataclass(frozen=True, slots=True)
class Preset:
    """`parameters`: values by field of `CellParameters`. `source`: where the numbers are from. `numbers`: the published
    ones, and how they become parameters. `assumed`: what the source does not give. `leaves_out`: what the source
    reports, or what happens in such clusters, that the preset does not model."""

    parameters: Mapping[str, object]
    source: str
    numbers: str
    assumed: str
    leaves_out: str


def _mean(mean_ms: float) -> Distribution:
    return Distribution(mean_ms=round(mean_ms))


def _yearly(failures: float) -> Distribution:
    """The time to failure at that rate per machine-year, in whole hours."""
    return _mean(round(YEAR_MS / failures / HOUR_MS) * HOUR_MS)


_FORD_PER_YEAR = 12 / 4.3
_FORD_IN_BURSTS = 0.37
_FORD_WITH_RACK = 0.098
_DEAN_MACHINES = 1_800
_DEAN_RACK = 60
_HDFS_PER_MONTH = 0.008

PRESETS: Mapping[str, Preset] = {
    "ford-2010": Preset(
        parameters={
            "broker_mttf": _yearly(round(_FORD_PER_YEAR * (1 - _FORD_IN_BURSTS), 2)),
            "broker_mttr": Distribution(dist="lognormal", mean_ms=7 * MINUTE_MS, shape=1.57),
            "burst": Burst(
                per_broker_year=round(_FORD_PER_YEAR * _FORD_IN_BURSTS - _FORD_WITH_RACK, 2),
                size=2,
                window_ms=2 * MINUTE_MS,
            ),
            "racks": 3,
            "rack_power_events_per_year": _FORD_WITH_RACK,
        },
        source="Ford et al., Availability in Globally Distributed Storage Systems, OSDI 2010: one year of tens of "
        "Google's storage clusters of 1,000 to 7,000 nodes",
        numbers="A node becomes unavailable every 4.3 months on average (2.79 times a year), and 37 % of these "
        "failures are part of a burst of two nodes or more within 2 minutes of each other: 1.76 failures a year "
        "alone and 1.03 in bursts. A rack fails every 10.2 years (0.098 times a year), which is a burst of its nodes: "
        "0.93 of the 1.03 are in other bursts. Less than 10 % of the events last longer than 15 minutes: log-normal, "
        "median 2 minutes, mean 7 minutes, shape 1.57.",
        assumed="Bursts strike exactly two of the study's brokers, the worst case for a cluster that is a small "
        "part of a data centre. Tails and disks are lost as the parameters say; the paper does not report that.",
        leaves_out="Larger bursts, most of which hit one rack or several; planned reboots, which are most of the "
        "down time there; disk failures (10 to 50 years each) and data corruption.",
    ),
    "dean-first-year": Preset(
        parameters={
            "broker_mttf": _yearly(1_000 / _DEAN_MACHINES),
            "broker_mttr": _mean(HOUR_MS),
            "racks": 3,
            "rack_power_events_per_year": round(20 * _DEAN_RACK / _DEAN_MACHINES, 3),
            "rack_power_mttr": _mean(3.5 * HOUR_MS),
            "burst": Burst(per_year=1.0, fraction=0.42, window_ms=0, down=_mean(6 * HOUR_MS)),
            "power_events_per_year": 0.5,
            "power_mttr": _mean(36 * HOUR_MS),
        },
        source="Jeff Dean, Designs, Lessons and Advice from Building Large Distributed Systems, LADIS 2009 (The "
        "Joys of Real Hardware): the first year of a new cluster, here of 1,800 machines in racks of 60",
        numbers="1,000 failures of single machines (0.56 per machine); 20 racks of 40 to 80 machines vanish for 1 "
        "to 6 hours (0.667 per rack, 3.5 hours); 1 power distribution unit takes 500 to 1,000 machines for 6 "
        "hours (once a year, each broker with probability 0.42); 0.5 times overheating takes most machines for 1 "
        "to 2 days (36 hours).",
        assumed="A single machine is back after 1 hour on average. Which brokers share a power distribution unit "
        "is drawn at random. Durations are exponential.",
        leaves_out="1 rack move and 1 rewiring (5 % of the machines over two days), both announced; 5 racks that "
        "lose half of their packets; 8 network maintenances, 12 router reloads and 3 router failures; thousands "
        "of disk failures, slow disks and flaky machines.",
    ),
    "hdfs-2010": Preset(
        parameters={
            "broker_mttf": _yearly(12 * _HDFS_PER_MONTH),
            "broker_mttr": _mean(DAY_MS),
            "disk_loss_probability": 1.0,
        },
        source="Shvachko, Kuang, Radia and Chansler, The Hadoop Distributed File System, MSST 2010: Yahoo's "
        "clusters of up to 4,000 nodes",
        numbers="0.8 % of the nodes fail each month for good (MTTF 10.4 years); what they held is lost and copied "
        "anew.",
        assumed="A broker with an empty disk replaces the failed one after 1 day on average.",
        leaves_out="Restarts of processes, which lose nothing there; failures of racks and core switches; the half"
        " to one percent of the nodes that do not survive a restart of the power; silent corruption (20 replicas "
        "a fortnight).",
    ),
    "cloud-vm-1": Preset(
        parameters={
            "broker_mttf": _yearly(0.01),
            "broker_mttr": _mean(10 * MINUTE_MS),
            "tail_loss_probability": 1.0,
        },
        source="a planning value of operators, not a measurement: the low end of 1 to 5 % of the virtual machines "
        "a year",
        numbers="1 % a year: MTTF 100 years.",
        assumed="The host fails, its page cache is lost, the disk is on the network and survives; the machine is "
        "restarted on another host after 10 minutes on average.",
        leaves_out="Failures of a zone, planned maintenance with live migration, restarts of the broker, which are"
        " far more frequent, and instances with local disks.",
    ),
    "cloud-vm-5": Preset(
        parameters={
            "broker_mttf": _yearly(0.05),
            "broker_mttr": _mean(10 * MINUTE_MS),
            "tail_loss_probability": 1.0,
        },
        source="a planning value of operators, not a measurement: the high end of 1 to 5 % of the virtual machines"
        " a year",
        numbers="5 % a year: MTTF 20 years.",
        assumed="As for cloud-vm-1.",
        leaves_out="As for cloud-vm-1.",
    ),
    "weekly-crash": Preset(
        parameters={
            "broker_mttf": _mean(7 * DAY_MS),
            "broker_mttr": _mean(5 * MINUTE_MS),
            "tail_loss_probability": 0.0,
        },
        source="a calibration for clusters in trouble, not a measurement: every broker process crashes once a week",
        numbers="52 crashes per broker and year.",
        assumed="The process dies (out of memory, a defect) and the machine does not, so the page cache survives; "
        "it is restarted after 5 minutes on average, independently of the others.",
        leaves_out="A common cause, such as a poisonous request that ends all brokers; failures of machines and disks.",
    ),
    "preemptible": Preset(
        parameters={
            "broker_mttf": _mean(22.8 * HOUR_MS),
            "broker_mttr": _mean(5 * MINUTE_MS),
            "unclean_probability": 0.1,
        },
        source="Google Compute Engine, documentation of preemptible instances: 5 to 15 % are preempted per day, "
        "averaged over a week, and none runs longer than 24 hours",
        numbers="Preempted at 10 % a day or ended after 24 hours, whichever is first: a mean of 22.8 hours (24 x "
        "0.1 / -ln 0.9).",
        assumed="The notice of 30 seconds is enough for a controlled shutdown in 9 of 10 cases; the disk is kept; "
        "a new instance is there after 5 minutes on average. Lifetimes are exponential.",
        leaves_out="The sharp end of lifetimes at 24 hours, waves of preemptions that strike many instances of a "
        "zone, and times in which none can be had.",
    ),
}
