"""Failure logs become recorded failures: by hand for an example of each format, every line accounted for, wrong input.

The expected outages follow from the example files in `testdata` by subtraction: times count from the first that the
file mentions, node names become brokers in the order in which the file first has them.
"""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from experiments.studies.design.recorded import FailureFile, record
from experiments.studies.logs.formats import FORMATS
from experiments.studies.logs.importing import Imported, Outage, Wanted, import_log
from experiments.support.errors import InputError
from tests.yaml_rows import rows

DATA = Path(__file__).parent / "testdata"
DAY_MS = 86_400_000
COLUMNS = {"node": "hostname", "down": "start_time", "up": "end_time"}


def _imported(name: str, wanted: Wanted) -> Imported:
    path = DATA / f"{name}.{'tab' if name == 'fta' else 'csv'}"
    found = import_log(FORMATS[name], [path], wanted)
    assert found.lines == len(found.outages) + found.joined + found.ends + sum(found.left_out.values())
    return found


def test_a_log_of_ones_own_with_names_zones_overlaps_and_an_open_end() -> None:
    """The first time is 10:00 UTC on 1 March, the last midnight on 3 March: 38 hours. kafka-b, named first, is broker
    0, down for 5 min, and from 4 min on until 9 min 0.5 s: 540.5 s. kafka-a is down from 12:00 at +02:00, which is 0,
    for 30 min. kafka-c is down from 14 h on without an end: until 38 h."""
    found = _imported("csv", Wanted(columns=COLUMNS))
    hour_ms = 3_600_000
    assert found.outages == [
        Outage(0, 0, 540_500, "unclean"),
        Outage(0, 1, 1_800_000, "unclean"),
        Outage(14 * hour_ms, 2, 38 * hour_ms, "unclean"),
    ]
    assert (found.joined, found.open, found.cut) == (1, 1, 0)
    assert found.left_out == {"outages shorter than a millisecond": 1}
    assert found.brokers == {"kafka-b": 0, "kafka-a": 1, "kafka-c": 2}


def test_lanl() -> None:
    """6 minutes from 10:54 on 21 June 2005, the first time; 90 minutes from midnight, 13 h 6 min later; one of 0
    minutes. Nodes of two systems with the same number are two nodes."""
    found = _imported("lanl", Wanted())
    assert found.outages == [
        Outage(0, 0, 360_000, "unclean"),
        Outage(47_160_000, 1, 52_560_000, "unclean"),
    ]
    assert found.brokers == {"2/0": 0, "2/1": 1, "20/1": 2}
    assert found.left_out == {"outages shorter than a millisecond": 1}


def test_failure_trace_archive() -> None:
    """Node 17 is down for 300.5 s from 300 s on; node 42 from 400 s on without an end: until the last time, 600.5 s."""
    found = _imported("fta", Wanted(kind="lossy"))
    assert found.outages == [Outage(300_000, 0, 600_500, "lossy"), Outage(400_000, 1, 600_500, "lossy")]
    assert found.left_out == {"periods in which the node is up": 2, "periods of another kind: user present": 1}


def test_google_times_are_microseconds() -> None:
    """Machine 6 is removed at 835.527016 s and added 200 s later; machine 7 is removed at 2,000 s, until the end of the
    record, 3,000 s. `--ends` is in microseconds as the file is: 2500000000 is 2,500 s."""
    found = _imported("google", Wanted())
    assert found.outages == [
        Outage(835_527, 1, 1_035_527, "unclean"),
        Outage(2_000_000, 2, 3_000_000, "unclean"),
    ]
    assert (found.ends, found.length_ms) == (1, 3_000_000)
    assert found.left_out == {
        "UPDATE events: the machine's resources change": 1,
        "nodes that come up for the first time, or are up": 4,
    }
    shorter = _imported("google", Wanted(begins="900000000", ends="2500000000"))
    assert shorter.outages == [Outage(0, 1, 135_527, "unclean"), Outage(1_100_000, 2, 1_600_000, "unclean")]
    assert (shorter.cut, shorter.length_ms) == (1, 1_600_000)


def test_backblaze_failures_are_lost_disks_after_their_last_day() -> None:
    """Drive ZA2 has its last day on 2 January: it is lost two days after the record began, and replaced a day later."""
    found = _imported("backblaze", Wanted(repair_ms=DAY_MS))
    assert found.outages == [Outage(2 * DAY_MS, 1, 3 * DAY_MS, "disk")]
    assert found.left_out == {"days on which the drive works": 5}
    assert found.length_ms == 4 * DAY_MS


def test_several_compressed_files_are_one_log(tmp_path: Path) -> None:
    header, *lines = (DATA / "backblaze.csv").read_text().splitlines()
    paths = [tmp_path / "1.csv.gz", tmp_path / "2.csv"]
    paths[0].write_bytes(gzip.compress("\n".join([header, *lines[:3]]).encode()))
    paths[1].write_text("\n".join([header, *lines[3:]]))
    assert import_log(FORMATS["backblaze"], paths, Wanted(repair_ms=DAY_MS)) == _imported(
        "backblaze", Wanted(repair_ms=DAY_MS)
    )


def test_the_nodes_that_are_asked_for_and_their_numbers() -> None:
    found = _imported("csv", Wanted(columns=COLUMNS, nodes={"kafka-a": 0, "kafka-c": 2, "kafka-z": 1}))
    assert {outage.broker for outage in found.outages} == {0, 2}
    assert found.left_out["lines of nodes that are not asked for"] == 2
    first = _imported("csv", Wanted(columns=COLUMNS, brokers=1))
    assert {outage.broker for outage in first.outages} == {0}


def test_what_is_written_is_what_a_study_reads(tmp_path: Path) -> None:
    found = _imported("csv", Wanted(columns=COLUMNS))
    file = FailureFile(file="outages.csv", length_ms=found.length_ms)
    read = record(file, found.text(), "outages.csv", range(3), DAY_MS)
    assert [(it.down_ms, it.node, it.up_ms, it.kind) for it in read.outages] == found.outages


@pytest.mark.parametrize(("unit", "scale"), [("s", 1_000), ("ms", 1), ("us", 0.001)])
def test_numbers_have_the_unit_that_is_given(unit: str, scale: float, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("node,down,up,kind\n4,1000000,3000000,clean\n2,2000000,2500000,disk\n")
    found = import_log(FORMATS["csv"], [path], Wanted(unit=unit))  # type: ignore[arg-type]
    assert found.outages == [
        Outage(0, 4, round(2_000_000 * scale), "clean"),
        Outage(round(1_000_000 * scale), 2, round(1_500_000 * scale), "disk"),
    ]


@pytest.mark.parametrize(("format_name", "text", "options", "line"), rows(__file__, "wrong-logs.yaml"))
def test_wrong_input_is_one_line(
    format_name: str, text: str, options: dict[str, object], line: str, tmp_path: Path
) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        import_log(FORMATS[format_name], [path], Wanted(**options))  # type: ignore[arg-type]
    assert re.fullmatch(line, str(caught.value).replace(f"{tmp_path}/", "")), str(caught.value)
