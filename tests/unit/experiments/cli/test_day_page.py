"""The page of a game day: verdict, time line, unavailability and faults above the diagram of its recording."""

from __future__ import annotations

import re
from pathlib import Path

from experiments.check.engine import CheckedEngine
from experiments.cli.day_page import write_day_page
from experiments.explorer.day import WITHOUT_ACKNOWLEDGEMENT, Span
from experiments.hunt.soak.run import DoneFault, SoakOptions, SoakResult
from experiments.scenarios.loader import scenario_from
from experiments.scenarios.runner import Runner, run_recorded

SCENARIO: dict[str, object] = {
    "name": "day",
    "cluster": {"brokers": 3},
    "topics": [{"name": "t", "assignments": [[0, 1, 2]]}],
    "steps": [
        {"produce": {"topic": "t", "records": 2}},
        {"wait": "5s"},
    ],
}


def test_the_page_has_verdict_faults_and_unavailability_of_a_recorded_day(tmp_path: Path) -> None:
    recording, page = tmp_path / "day", tmp_path / "day.html"
    scenario = scenario_from(SCENARIO, "day.yaml")
    run_recorded(Runner(scenario, CheckedEngine(scenario.cluster.spec(1))), recording)
    options = SoakOptions(1, 1, 3, 1, 10, ("pause",), recording, cluster="practice")
    gaps = [Span("t-0", WITHOUT_ACKNOWLEDGEMENT, 1_000, 3_500), Span("t-1", WITHOUT_ACKNOWLEDGEMENT, 0, 5_000)]
    result = SoakResult(
        options, gaps=gaps, done=[DoneFault(0, "pause", 1_500, "broker <2>", 700)], findings=["2 & 3 differ"]
    )
    write_day_page(page, result)
    text = page.read_text(encoding="utf-8")
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", text)]
    assert ["t-0", "no leader", "0", "0.0", "0.0"] in rows
    assert ["t-0", "no acknowledgement", "1", "2.5", "2.5"] in rows
    assert ["t-1", "no acknowledgement", "1", "5.0", "5.0"] in rows, "it has no leader at the end, so no final log"
    assert ["1.5", "pause", "broker &lt;2&gt;", "0.7"] in rows
    assert "Findings: 1" in text
    assert '<p class="alarm">2 &amp; 3 differ</p>' in text
    assert "<svg" in text.partition("Unavailability")[0]
    assert "pause: broker &lt;2&gt;; healthy again after 0.7 s" in text
