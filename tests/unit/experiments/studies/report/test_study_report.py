"""The page: it stands alone, and shows the same without JavaScript."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from experiments.studies.design.model import CellParameters
from experiments.studies.design.study import StudyPlan
from experiments.studies.estimation.estimates import FailoverTimes
from experiments.studies.estimation.times import KINDS, Quantiles, Times, measured_document, read_measured, read_times
from experiments.studies.report import kafka, words
from experiments.studies.report.charts.times import times_charts
from experiments.studies.report.failure_rates import beside_published, failure_rates, in_comparison
from experiments.studies.report.partial import Partial, partial
from experiments.studies.report.render import LeftOut, PageExtras, read_left_out, render
from experiments.studies.report.settings import groups
from experiments.studies.trace.kinds import Restarted, Throughput
from experiments.support.errors import InputError
from tests.synthetic_studies import cells_of, record_of, study_of, times_of

STUDY = study_of(
    base={"broker_mttf": "30d", "detection": "instant"},
    sweep={"generation": ["kip-497", "kip-966"], "min_insync_replicas": [1, 2]},
)
NAMES = [words.cell_name(cell.swept) for cell in STUDY.cells]
LOSSES = [90, 80, 70, 0]


def page_of(study: StudyPlan, losses: list[int], **shares: list[float]) -> str:
    return render(record_of(study), cells_of(study, losses, **shares))


@pytest.fixture(scope="module")
def page() -> str:
    return page_of(STUDY, LOSSES)


@pytest.mark.slow
def test_page_is_a_function_of_its_input_and_loads_nothing(page: str) -> None:
    assert page == page_of(STUDY, LOSSES)
    assert len(page.encode()) < 3_000_000
    without_scripts = re.sub(r"<script.*?</script>", "", page, flags=re.S)
    assert not re.search(r"@import|url\(http|\bsrc=|<link(?! rel=\"icon\" href=\"data:,\")", without_scripts)
    ids = re.findall(r'\bid="([^"]+)"', without_scripts)
    assert len(ids) == len(set(ids))


@pytest.mark.slow
def test_page_has_the_drawings_and_numbers_without_javascript(page: str) -> None:
    assert page.count('class="plot"') == page.count('role="img" aria-label="') == page.count('<svg xmlns="')
    assert all(name in page for name in NAMES)
    assert "exact Poisson (Garwood)" in page
    assert "one-sided" in page
    assert "Trial k of all settings sees the same failures" in page
    assert "<td>exponential, mean 30d</td>" in page
    assert "<code>unclean.recovery.strategy</code> of the cluster" in page


@pytest.mark.slow
def test_charts_of_the_script_are_those_of_the_page(page: str) -> None:
    found = re.search(r'<script type="application/json" id="charts">(.*?)</script>', page, re.S)
    assert found is not None
    charts = json.loads(found[1])
    assert sorted(chart["name"] for chart in charts) == sorted(re.findall(r'id="plot-([^"]+)"', page))
    assert {"loss_rate", "tradeoff-0", "difference-loss_rate-0", "map-0"} <= {c["name"] for c in charts}


@pytest.mark.slow
def test_times_are_drawn_as_the_distributions_that_they_have() -> None:
    """Handovers have a chart of their own; a setting without times of a kind has no row in its chart."""
    slow, quick = times_of((9_000, 0.9), (60_000, 0.98), (3_600_000, 1.0)), times_of((2, 1.0))
    times = [{"failover": slow, "handover": quick}, {}, {"failover": slow}, {}]
    failovers, handovers = times_charts(groups(STUDY, cells_of(STUDY, LOSSES)), times)
    assert [failovers.name, handovers.name] == ["times-failover", "times-handover"]
    assert failovers.label.count("median 9 s, 99 % within 1 h, longest 1 h, 50 outages") == 2
    assert NAMES[1] not in failovers.label
    assert handovers.label == f"{NAMES[0]}: median 2 ms, 99 % within 2 ms, longest 2 ms, 50 handovers."
    bars = failovers.spec["datasets"][failovers.spec["layer"][0]["data"]["name"]]
    shares = [bar["words"].split(" % ")[0] for bar in bars[:3]]
    assert shares == ["90", "8", "2"]
    heights = [bar["foot"] - bar["top"] for bar in bars[:3]]
    assert heights[0] / heights[1] == pytest.approx(90 / 8)


def write_gold(folder: Path, name: str, content: object) -> None:
    (folder / "gold").mkdir(exist_ok=True)
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / "gold" / name).write_text(text, encoding="utf-8")


def test_files_that_are_left_out_are_named_below_the_answer(page: str, tmp_path: Path) -> None:
    assert "left out" not in page
    file = "/a/trials/b/trace/cell-0a1b-trials-0000003-0000006.parquet"
    write_gold(tmp_path, "quarantine.json", [{"file": file, "reason": "cut <off>", "trials": [3, 6]}] * 12)
    found = read_left_out(tmp_path, {"0a1b": NAMES[1]})
    assert found[0] == LeftOut("trace/cell-0a1b-trials-0000003-0000006.parquet", NAMES[1], 3, 5, "cut <off>")
    shown = render(record_of(STUDY), cells_of(STUDY, LOSSES), PageExtras(left_out=found))
    answer, _, rest = shown.partition('id="left-out"')
    assert 'id="answer"' in answer
    assert "12 damaged files are left out</strong>, with 36 trials" in rest
    assert rest.count(f"cut &lt;off&gt; ({NAMES[1]}, trials 3 to 5)") == 10
    assert "And 2 more" in rest


def test_settings_of_an_interrupted_sweep_are_named_with_their_trials(page: str) -> None:
    """Of 100 trials the second setting has 37, the third 60 and 40 in damaged files, the last none too few."""
    study = study_of(sweep={"generation": ["kip-497", "kip-966"], "min_insync_replicas": [1, 2]}, trials=100)
    found = partial(study, NAMES, [100, 37, 60, 140], {NAMES[2]: 40})
    assert found == [Partial(NAMES[1], 37, 100)]
    assert "partial:" not in page
    shown = render(record_of(STUDY), cells_of(STUDY, LOSSES), PageExtras(partial=found))
    assert f"partial: 37 of 100 trials of {NAMES[1]}" in shown.partition('id="partial"')[2]


@pytest.mark.parametrize("content", [None, "[", '[{"file": 1}]'])
def test_a_damaged_list_of_files_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        write_gold(tmp_path, "quarantine.json", content)
    with pytest.raises(InputError, match=r"quarantine\.json"):
        read_left_out(tmp_path, {})


def test_times_are_read_from_gold(tmp_path: Path) -> None:
    table = tmp_path / "gold" / "distributions"
    table.mkdir(parents=True)
    rows = {"cell": [1, 1], "kind": ["failover"] * 2, "up_to_ms": [20.0, 10.0], "share": [1.0, 0.5]}
    pq.write_table(pa.table(rows), table / "part-0.parquet")
    none, some = asdict(FailoverTimes(None, None, None)), asdict(FailoverTimes(10.0, 20.0, 20.0))
    documents = [{f"{kind}_ms": none for kind in KINDS}, {f"{kind}_ms": some for kind in KINDS}]
    write_gold(tmp_path, "cells.json", documents)
    times = Times(FailoverTimes(10.0, 20.0, 20.0), ((10.0, 0.5), (20.0, 1.0)))
    assert read_times(tmp_path) == [{}, {"failover": times}]
    (table / "part-0.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match="gold/distributions"):
        read_times(tmp_path)


@pytest.mark.slow
def test_curve_is_drawn_along_a_swept_failure_rate() -> None:
    study = study_of(sweep={"broker_mttf": "log(5d, 1y, 4)", "min_insync_replicas": [1, 2]})
    page = page_of(study, [90, 80, 60, 40, 20, 10, 3, 0])
    assert 'id="plot-curve-broker_mttf"' in page
    assert "failures per broker and year" in page


@pytest.mark.slow
def test_page_has_what_clients_and_operators_measured_where_anything_was(page: str) -> None:
    assert 'id="measured"' not in page
    times = Quantiles(2_500.0, 5_000.0, 9_000.0)
    measured: list[dict[str, Quantiles | float]] = [{} for _ in STUDY.cells]
    measured[1] = {"client_failover_ms": times}
    measured[2] = {"throughput": 1_234.0, "restart_ms": times}
    estimators = ["plain", "plain", "plain", "importance"]
    cells = [replace(cell, estimator=name) for cell, name in zip(cells_of(STUDY, LOSSES), estimators, strict=True)]
    measured[3] = {"acked_latency_ms": times}
    found = render(record_of(STUDY), cells, PageExtras(measured=measured))
    (table,) = re.findall(r'<section id="measured">.*?</section>', found, re.S)
    assert [name for name in NAMES if name in table] == NAMES[1:3]
    assert table.count("2.5\N{NO-BREAK SPACE}s") == 2
    assert "1,234 records/s" in table
    assert "latency of acknowledged writes" not in table, "its one setting has weighted trials"


def test_measured_numbers_are_read_from_the_cells(tmp_path: Path) -> None:
    found = {Restarted.KIND: Quantiles(1.5, 2.5, 3.5), Throughput.KIND: Quantiles(7.0, 8.0, 9.0)}
    documents = [measured_document(found), measured_document({})]
    write_gold(tmp_path, "cells.json", documents)
    assert read_measured(tmp_path) == [{"throughput": 7.0, "restart_ms": found[Restarted.KIND]}, {}]


def test_page_shows_warnings() -> None:
    cells = cells_of(STUDY, LOSSES)
    cells[1] = replace(cells[1], warnings=("weights degenerate: loss_rate: one event has 40 % of the weight",))
    page = render(record_of(STUDY), cells)
    assert f"no estimate: {NAMES[1]} (1 number).</p>" in page


def test_page_says_what_is_assumed_and_which_parameters_all_cells_share() -> None:
    """A swept preset changes other parameters too, which are then not the same in all cells."""
    study = study_of(base={"brokers": 3}, sweep={"preset": ["none", "weekly-crash"]})
    page = page_of(study, [1, 0])
    assert "<li>There are no correlated failures.</li>" in page
    assert "The failure model begins with the preset weekly-crash." in page
    shared = {name for name, _, _ in words.parameter_rows([cell.parameters for cell in study.cells])}
    assert "brokers" in shared
    assert not shared & {"preset", "broker_mttf", "broker_mttr", "tail_loss_probability"}


def test_recommendation_of_what_no_release_has_comes_with_no_command(page: str) -> None:
    """The study recommends kip-966."""
    assert "No release of Apache Kafka has kip-966, but of these settings kip-966 · min ISR 2 loses" in page
    assert "# kip-966: no release of Apache Kafka has it, so nothing can be typed to run it." in page
    assert "bin/kafka" not in page
    assert "Unclean Recovery: in no release yet" in page


ELR_ON = "bin/kafka-features.sh --bootstrap-server HOST:9092 upgrade --feature eligible.leader.replicas.version=1"
CREATE = "bin/kafka-topics.sh --bootstrap-server HOST:9092 --create --topic TOPIC --replication-factor 3"
ALTER = "bin/kafka-configs.sh --bootstrap-server HOST:9092 --alter --entity-type topics --entity-name TOPIC"


def test_commands_configure_all_of_a_setting() -> None:
    given: dict[str, object] = {"unclean_recovery_strategy": "proactive", "flush_interval_ms": 5_000, "racks": 3}
    given |= {"detection_ms": 4_000, "delivery_timeout_ms": 30_000, "acks": "1", "min_insync_replicas": 1}
    assert kafka.commands(CellParameters.model_validate(given)) == [
        ELR_ON,
        "broker.rack=RACK   # in each broker's server.properties, before the topic is created",
        f"{CREATE} --config min.insync.replicas=1 --config flush.ms=5000 --config unclean.leader.election.enable=true",
        f"{ALTER} --add-config min.insync.replicas=1,flush.ms=5000,unclean.leader.election.enable=true"
        "   # a topic that exists",
        "broker.session.timeout.ms=4000   # in each controller's server.properties",
        "acks=1   # in each producer",
        "delivery.timeout.ms=30000   # in each producer",
    ]
    assert kafka.commands(CellParameters(generation="kip-497"))[0] == (
        "bin/kafka-features.sh --bootstrap-server HOST:9092 downgrade --feature eligible.leader.replicas.version=0"
        "   # from Kafka 4.0 on"
    )
    proactive = kafka.commands(CellParameters(generation="kip-966", unclean_recovery_strategy="proactive"))
    assert all(line.startswith("# ") for line in proactive)
    assert proactive[-1] == "# unclean.leader.election.enable=true."


@pytest.mark.parametrize("generation", ["kip-497", "kip-966-elr"])
@pytest.mark.parametrize(("strategy", "enabled"), [("balanced", "false"), ("proactive", "true")])
def test_strategy_before_kip_966_is_unclean_leader_election(generation: str, strategy: str, enabled: str) -> None:
    cell = CellParameters.model_validate({"generation": generation, "unclean_recovery_strategy": strategy})
    (row,) = [row for row in kafka.configs([cell]) if row.parameter == f"{strategy} recovery"]
    assert (row.config, row.release) == (f"unclean.leader.election.enable={enabled}", kafka.IN_ALL)


def section(page: str, name: str) -> str:
    """The text of a section of the page."""
    (found,) = re.findall(rf'<section id="{name}">.*?</section>', page, re.S)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", found))


@pytest.mark.slow
def test_a_cluster_of_your_size_has_the_metric_of_the_question() -> None:
    """18 losses per partition-year with acks=1 are 1,800 in 100 partitions; of acks=all none was seen there."""
    study = study_of(base={"acks": 1}, sweep={"min_insync_replicas": [1, 2]})
    assert study.objective == "acknowledged_loss_rate"
    shown = section(page_of(study, [50, 100]), "cluster")
    assert "Loss events of acknowledged records a year that are expected in all partitions together" in shown
    assert re.search(r"min ISR 1 50 [\d.]+ – [\d.]+ 500 ", shown)
    assert re.search(r"min ISR 2 100 [\d.]+ – [\d.]+ 1,000 ", shown)
    assert "in 1 partition one every" in shown
    times = study_of(objective="stall_fraction", sweep={"detection": ["1s", "10s"]})
    shown = section(page_of(times, [0, 0], stalled=[1e-3, 1e-2]), "cluster")
    assert "How many partitions are concerned at a moment, on average, by the time in which writes wait" in shown
    assert re.search(r"detection 10s 0\.999 0\.\d+ – [\d.]+ 9\.99 ", shown), "1 % of the time is 1 of 100 partitions"
    assert "one every" not in shown


@pytest.mark.parametrize(
    ("generation", "config", "release"),
    [
        ("kip-497", "eligible.leader.replicas.version=0", "Kafka 2.7 to 3.9"),
        ("kip-966-elr", "eligible.leader.replicas.version=1", "Kafka 4.0 as a preview"),
        ("kip-966", "eligible.leader.replicas.version=1 and Unclean Recovery", "in no release yet"),
    ],
)
def test_generations_name_the_release_that_has_them(generation: str, config: str, release: str) -> None:
    rows = {row.parameter: row for row in kafka.configs([CellParameters.model_validate({"generation": generation})])}
    assert rows[generation].config == config
    assert release in rows[generation].release
    strategy = rows["balanced recovery"]
    assert strategy.release == (kafka.IN_NONE if generation == "kip-966" else kafka.IN_ALL)


def test_failures_stand_beside_published_ones() -> None:
    harsh = study_of(base={"broker_mttf": "20d", "broker_mttr": "5d", "tail_loss_probability": 0.5}).cells[0].parameters
    found = failure_rates("mine", harsh)
    assert found is not None
    assert found.failures == pytest.approx(365 / 25)
    assert found.losing_tail == pytest.approx(365 / 50)
    rows = beside_published([("mine", harsh)])
    assert [row.name for row in rows] == ["mine", "ford-2010", "dean-first-year", "hdfs-2010", "cloud-vm-5"]
    assert [bool(row.source) for row in rows] == [False, True, True, True, True]
    (ford,) = [row for row in rows if row.name == "ford-2010"]
    assert words.number(ford.failures) == "2.79", "every 4.3 months, as published"
    assert in_comparison([("mine", harsh)]).startswith("These failures are harsh: a broker fails 14.6 times a year, 5")
