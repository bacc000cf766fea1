"""The engine `kafka` on a real Apache Kafka 4.4.0: needs Maven Central and a JDK 17 (`make test-kafka`).

Two scenarios have every kind of step that a real Kafka can carry out, each with what must follow from it; the second
one ends where no broker runs. Their recordings are then checked as those of any other engine.
"""

from __future__ import annotations

import os
import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from experiments.check.check_recording import check
from experiments.check.recording import Recording
from experiments.cli.main import application
from experiments.engines.kafka.engine import KafkaEngine
from experiments.engines.kafka.life_cycle import SHIPPED
from experiments.engines.kafka.metadata_log import MetadataLog
from experiments.engines.kafka.processes import Program
from experiments.engines.kafka.properties import ALIASES, first_voters
from experiments.scenarios.loader import require_engine, scenario_from
from experiments.scenarios.on_kafka import require_shown
from experiments.scenarios.runner import Runner, run_recorded
from experiments.support.releases.installed import install
from tests.kafka.kafka_jars import RELEASE

LINKS_AND_DISKS = """
name: links-and-disks
cluster:
  brokers: 3
  generation: kip-966-elr
  racks: 3
  config: {broker.session.timeout.ms: 4000, broker.heartbeat.interval.ms: 500, replica.lag.time.max.ms: 4000}
topics:
  - {name: t, assignments: [[0, 1, 2]], config: {min.insync.replicas: 2}}
steps:
  - produce: {topic: t, records: 3}
  - expect: {topic: t, leader: 0, isr: [0, 1, 2], high_watermark: 3, log_end_offset: {0: 3, 1: 3, 2: 3}, visible: 3}
  - expect: {topic: t, racks: [rack-0, rack-1, rack-2], lost_acked: 0, leader_epoch: 0, partition_epoch: 0}
  # Fetches of broker 2 no longer reach the leader; its heartbeats still reach the controllers. Kafka counts a follower
  # that has all records as caught up, however long it is silent, so one is written.
  - cut: {from: 2, to: 0}
  - produce: {topic: t, records: 1, acks: 1}
  - await: {topic: t, isr: [0, 1]}
  - expect: {broker: 2, registration: unfenced}
  - heal: all
  - await: {topic: t, isr: [0, 1, 2]}
  - cut: {between: [2, controllers]}
  - await: {broker: 2, registration: fenced}
  - heal: {between: [2, controllers]}
  - await: {topic: t, isr: [0, 1, 2]}
  - pause: {broker: 2}
  - await: {broker: 2, state: fenced}
  - resume: {broker: 2}
  - await: {topic: t, isr: [0, 1, 2]}
  - flush: {broker: 1}
  - crash: {broker: 1, lose: unflushed}
  - await: {topic: t, isr: [0, 2]}
  - start: {broker: 1}
  - await: {topic: t, isr: [0, 1, 2], log_end_offset: {1: 4}}
  - crash: {broker: 2, lose: all}
  - start: {broker: 2}
  - await: {topic: t, isr: [0, 1, 2], log_end_offset: {2: 4}}
"""
ADMINISTRATION = """
name: administration
cluster:
  brokers: 3
  controllers: 3
  generation: kip-966-elr
  config: {broker.session.timeout.ms: 4000, broker.heartbeat.interval.ms: 500}
topics:
  - {name: t, assignments: [[0, 1, 2]], config: {min.insync.replicas: 2}}
steps:
  - produce: {topic: t, records: 3}
  - crash: {controller: active}
  - produce: {topic: t, records: 1, acks: 1}
  - await: {broker: 0, registration: unfenced}
  - start: {controller: former}
  - await: {controller: former, role: follower}
  - remove_voter: {controller: former}
  - await: {controller: former, role: observer}
  - add_voter: {controller: former}
  - await: {controller: former, role: follower, voters: [1000, 1001, 1002]}
  - shutdown: {broker: 0}
  - await: {topic: t, leader: 1, isr: [1, 2], elr: []}
  - start: {broker: 0}
  - await: {topic: t, isr: [0, 1, 2]}
  - elect: {topic: t, type: preferred}
  - await: {topic: t, leader: 0}
  - reassign: {topic: t, replicas: [0, 1]}
  - await: {topic: t, replicas: [0, 1]}
  - configure: {topic: t, config: {min.insync.replicas: 1}}
  - create_topic: {name: u, assignments: [[1, 2]]}
  - add_partitions: {name: u, assignments: [[2, 1]]}
  - expect: {topic: u, partition: 1, leader: 2}
  - delete_topic: {name: u}
  - create_topic: {name: v, assignments: [[7]], expect_error: INVALID_REPLICA_ASSIGNMENT}
  - crash: {broker: 2}
  - await: {broker: 2, registration: fenced}
  - unregister: {broker: 2}
  - await: {broker: 2, registration: none}
  - crash: {broker: 1}
  - await: {topic: t, isr: [0]}
  - crash: {broker: 0}
  - await: {topic: t, leader: -1, isr: [], elr: [0], last_known_elr: [0], undecided: 4}
"""

SESSION = (
    "kafka install 4.4.0",
    "kafka list",
    "scenario run last-known-leader --engine kafka --kafka 4.4.0 --trace out/on-kafka --html out/on-kafka.html",
    "check out/on-kafka",
)
"""The commands of docs/how-to/run-on-kafka.md."""


BY_REQUESTS = """
name: by-requests
cluster:
  brokers: 2
  generation: kip-966-elr
  config: {broker.session.timeout.ms: 4000, broker.heartbeat.interval.ms: 500}
topics:
  - {name: t, assignments: [[0, 1], [1, 0]], config: {min.insync.replicas: 2}}
steps:
  - produce: {topic: t, records: 2}
  - expect: {topic: t, leader: 0, isr: [0, 1], leader_epoch: 0, high_watermark: 2, visible: 2, lost_acked: 0}
  - crash: {broker: 0}
  - await: {topic: t, leader: 1, isr: [1], elr: [0], leader_epoch: 1}
  - expect: {broker: 0, state: shutdown}
"""


def test_another_life_cycle_reads_by_requests_what_the_disks_have(tmp_path: Path) -> None:
    """Apache Kafka by a file of its own, whose state is asked of the brokers; the metadata log on the controller's disk
    gives the same partitions, but for the partition epochs, which no response has.
    """
    install(RELEASE, os.environ, "RELEASE")
    file = tmp_path / "own.yaml"
    file.write_text(SHIPPED.read_text().replace("state: metadata-log", "state: protocol"))
    scenario = scenario_from(yaml.safe_load(BY_REQUESTS), "by-requests")
    require_shown(scenario)
    with closing(KafkaEngine(scenario.cluster.spec(), Program.of(RELEASE, os.environ, file))) as engine:
        result = Runner(scenario, engine).run()
        found, cluster = engine.view(), engine.cluster
        voters = first_voters(engine.spec, cluster.uuids)
        log = MetadataLog({1000: cluster.disk(1000)}, engine.spec.config, voters, ALIASES, lambda node, trace: None)
        log.refresh()
    assert [f"{step.text}: {step.detail}" for step in result.steps if not step.ok] == []
    assert found is not None
    expected = log.view()
    assert {key: replace(it, partition_epoch=-1) for key, it in expected.partitions.items()} == dict(found.partitions)
    assert found.unfenced == expected.unfenced == {1}


@pytest.mark.parametrize("text", [LINKS_AND_DISKS, ADMINISTRATION], ids=["links-and-disks", "administration"])
def test_steps_have_the_effects_that_they_have_on_the_other_engines(tmp_path: Path, text: str) -> None:
    install(RELEASE, os.environ, "RELEASE")
    scenario = scenario_from(yaml.safe_load(text), "a scenario")
    require_engine(scenario, "kafka")
    with closing(KafkaEngine(scenario.cluster.spec(), Program.of(RELEASE, os.environ))) as engine:
        result = run_recorded(Runner(scenario, engine, keeps_going=True), tmp_path / "recording")
        pids = engine.cluster.pids()
    assert [f"{step.text}: {step.detail}" for step in result.steps if not step.ok] == []
    assert pids.keys() >= {*scenario.cluster.controller_ids}
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids.values())
    found = check(Recording(tmp_path / "recording"))
    assert (found.violations, found.engine, found.operations > 0) == ([], "kafka", True)
    assert min(found.looked_at["EpochsRise"], found.looked_at["MetadataLogMatching"]) > 5


def test_a_setting_that_a_broker_refuses_is_one_line_with_what_it_said(tmp_path: Path) -> None:
    install(RELEASE, os.environ, "RELEASE")
    file = tmp_path / "refused.yaml"
    config = "config: {replica.lag.time.max.ms: 100, replica.fetch.wait.max.ms: 2000}"
    file.write_text(
        f"name: s\ncluster: {{brokers: 1, generation: kip-497, {config}}}\ntopics: []\nsteps:\n  - wait: 1s\n"
    )
    line = ["scenario", "run", str(file), "--engine", "kafka", "--kafka", RELEASE]
    result = CliRunner().invoke(application(), line)
    assert re.search(r"node (0|1000): found .*replica.fetch.wait.max.ms.*; allowed: a node that", str(result.exception))


def test_the_documented_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed = []
    for line in SESSION:
        result = CliRunner().invoke(application(), line.split())
        assert result.exit_code == 0, result.output
        printed.append(result.output)
    assert "4.4.0" in printed[1]
    assert "last-known-leader on kafka, seed 0: passed; acknowledged records lost: 3" in printed[2]
    assert "the brokers are those of Apache Kafka, which report no trace events" in printed[3]
    assert "controller-1000" in (tmp_path / "out" / "on-kafka.html").read_text(encoding="utf-8")
