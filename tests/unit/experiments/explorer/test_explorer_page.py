"""The page as a file: it carries the whole run, loads nothing, and shows the story without JavaScript."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from experiments.explorer.page import MAX_STORY_ROWS, render_page, write_page
from experiments.explorer.run import Run, RunEvent, StoryRow
from experiments.explorer.values import message_fields, partitions_in
from experiments.support.errors import InputError
from protocol.messages.batch import RecordBatch
from protocol.messages.data import FetchPartition, FetchRequest, ProduceRequest
from tests.unit.experiments.explorer.explorer_helpers import data_of, run_of, state


class _Addresses(HTMLParser):
    """Collects what a page would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in ("src", "srcset")]
        self.found += [value or "" for name, value in attrs if tag == "link" and name == "href"]


SEND = RunEvent(1, 0, "send", "FetchRequest", ("t-0",), {"to": 1}, text="sends")
RECEIVE = RunEvent(3, 1, "receive", "FetchRequest", ("t-0",), {"from": 0}, cause=0, text="receives")


def test_the_columns_hold_every_event() -> None:
    [found] = data_of(render_page(run_of(SEND, RECEIVE, state(7, 1, [1]))))["runs"]
    assert found["time"] == [1, 2, 4]
    assert found["cause"] == [0, 1, 0]
    assert [found["nodes"][lane]["id"] for lane in found["node"]] == [0, 1, 1000]
    kinds = [tuple(found["kinds"][kind]) for kind in found["kind"]]
    assert kinds[:2] == [
        ("send", "FetchRequest", "Produce and fetch"),
        ("receive", "FetchRequest", "Produce and fetch"),
    ]
    assert [found["shapes"][shape] for shape in found["shape"]][:2] == [["to"], ["from"]]
    assert found["values"][2][found["shapes"][found["shape"][2]].index("isr")] == [1]


def test_the_page_loads_nothing() -> None:
    page = render_page(run_of(SEND, RECEIVE))
    assert _Addresses(page).found == ["data:,"]
    assert re.findall(r"https?://[^\s\"'<]+", page) == []


def test_the_story_is_in_the_page_and_escaped() -> None:
    page = render_page(run_of(RunEvent(5, 1, "trace", "broker_state", text="<b>running</b>")))
    assert "<td>broker-1</td><td>&lt;b&gt;running&lt;/b&gt;</td>" in page
    assert "0.005 s<" in page


def test_of_a_long_story_the_end_is_shown() -> None:
    rows = [StoryRow(0, number, 1, f"line {number}.") for number in range(MAX_STORY_ROWS + 7)]
    page = render_page(Run("long", [], [0, 1], [SEND, RECEIVE], story=rows))
    assert "The first 7 lines are left out." in page
    assert "line 6." not in page
    assert "line 7." in page


def test_equal_runs_give_equal_pages() -> None:
    assert render_page(run_of(SEND, RECEIVE)) == render_page(run_of(SEND, RECEIVE))


def test_a_file_that_cannot_be_written_is_wrong_input(tmp_path: object) -> None:
    with pytest.raises(InputError, match=r"--html.*a file that can be written"):
        write_page(tmp_path, run_of(SEND))  # type: ignore[arg-type]


def test_fields_of_messages_are_plain_and_name_their_partitions() -> None:
    batch = RecordBatch(record_count=1, payload=b"x" * 40)
    produce = message_fields(ProduceRequest(correlation_id=1, topic="t", partition=3, acks=-1, batch=batch))
    assert produce["batch"]["payload"] == f"40 B: {'78' * 16}..."  # type: ignore[index]
    assert partitions_in(produce, {}) == ("t-3",)
    parts = tuple(
        FetchPartition(topic_id="id", partition_id=number, current_leader_epoch=0, fetch_offset=0) for number in (2, 0)
    )
    fetch = message_fields(FetchRequest(replica_id=1, replica_epoch=1, partitions=parts))
    assert partitions_in(fetch, {"id": "t"}) == ("t-0", "t-2")
