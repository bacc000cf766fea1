"""The options of Kafka's tools: every one is honoured or refused by a line that says why, and commands of Kafka's
documentation do what they say, or one line says why not.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from experiments.cli.kafka_tools import KafkaTool, kafka_tools, other_scripts
from protocol.features import Generation
from tests.unit.experiments.cli.cli_helpers import Commands, MakeBench, command_line
from tests.yaml_rows import table

TOOLS = kafka_tools()
REFUSED = [(name, option) for name, tool in TOOLS.items() for option in tool.refused]
PASTED: dict[str, str | None] = table(__file__, "kafka-commands.yaml")
FILES = {
    "config/topic.properties": "! of a topic\nmin.insync.replicas : 2\nflush.mess\\\n  ages = 5\n",
    "config/client.properties": "principal=User:client-3000\n",
    "config/controller.properties": "process.roles=controller\nnode.id=1000\nlog.dirs=data/controller\n",
    "config/new.properties": "process.roles=controller\nnode.id=1001\nmetadata.log.dir=data/new\n",
    "config/broker.properties": "process.roles=broker\nnode.id=7\nlog.dirs=data/broker\n",
    "config/server.properties": "process.roles=broker,controller\nnode.id=1\nlog.dirs=data/both\n",
    "topics-to-move.json": json.dumps({"version": 1, "topics": [{"topic": "Test-topic"}]}),
    "bigger-cluster.json": json.dumps(
        {"version": 1, "partitions": [{"topic": "Test-topic", "partition": 0, "replicas": [2, 1, 0]}]}
    ),
}


def names_of(command: Any) -> set[str]:
    """The names of the options of a command, of its subcommands, and of these."""
    own = {name for parameter in command.params for name in parameter.opts} | {"--help"}
    below = getattr(command, "commands", {})
    return own.union(below, *map(names_of, below.values()))


@pytest.mark.parametrize(("name", "tool"), TOOLS.items(), ids=TOOLS)
def test_a_command_has_what_is_honoured_and_not_what_is_refused(name: str, tool: KafkaTool) -> None:
    found, honoured = names_of(command_line().commands[name]), {*tool.honoured.split(), *tool.partly}
    assert honoured - found == set()
    assert found & tool.refused.keys() == set()


@pytest.mark.parametrize(("name", "option"), REFUSED, ids=map(" ".join, REFUSED))
def test_a_refused_option_is_one_line_that_says_why(command: Commands, name: str, option: str) -> None:
    refused = command.refused(name, option)
    assert refused.startswith(f"isray: isray {name}: found {option} of {TOOLS[name].script}, ")
    assert "; allowed: " in refused


@pytest.mark.parametrize("script", [*other_scripts(), *(tool.script for tool in TOOLS.values())])
def test_the_name_of_a_script_is_answered_with_a_command(command: Commands, script: str) -> None:
    name = script.removeprefix("kafka-").removesuffix(".sh")
    for given in {script, name} - TOOLS.keys():
        refused = command.refused(given, "--bootstrap-server", "localhost:9092")
        assert refused.startswith(f"isray: isray: found {given}, ")
        named = {*re.findall("isray ([a-z-]+)", refused.partition("; allowed: ")[2])}
        assert named, refused
        assert named <= command_line().commands.keys()


def test_a_subcommand_refuses_the_options_of_the_tool(command: Commands) -> None:
    refused = command.refused("storage", "format", "--cluster-id", "c", "-S", "SCRAM-SHA-256=[name=a,password=b]")
    assert refused.startswith("isray: isray storage format: found -S of kafka-storage.sh, not modelled: SCRAM")


def test_commands_of_kafkas_documentation_work_or_one_line_says_why(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / "lines").write_text("one\ntwo\n")
    guarded = {"authorizer_class_name": "standard", "super_users": "User:client-3000"}
    bench = make_bench(Generation.KIP_966_ELR, brokers=3, **guarded)
    for line, said in PASTED.items():
        with (tmp_path / "lines").open() as lines:
            monkeypatch.setattr(sys, "stdin", lines)
            code, out, err = bench.run(*shlex.split(line))
        assert (said or "") in err, (line, code, out, err)
        assert len(err.splitlines()) == (said is not None), (line, code, out, err)
        assert code == 0 or said is not None, (line, code, out, err)
