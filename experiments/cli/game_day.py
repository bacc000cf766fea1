"""`isray run`: the steps and expectations of a scenario file on a cluster that runs already.

The file says what cluster it is for; another one is wrong input, and so is every step that a running cluster cannot do,
all of them before the first step. The cluster goes on as the steps have left it, with the topics that they created.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli.output import Json, fail, fail_if, option, print_result
from experiments.cli.run_pages import Exploration, Html, expect_page
from experiments.cli.scenario import print_scenario
from experiments.support.errors import InputError
from experiments.support.shipped import SCENARIOS, file_or_shipped
from protocol.ids import TopicPartition, node_name

if TYPE_CHECKING:
    from experiments.engines.ray.attached import AttachedEngine

WITHIN_MS = 10_000
RunningName = Annotated[str | None, option("NAME", "Your running cluster of this name on this machine.")]
RunningAddress = Annotated[str | None, option("HOST:PORT", "Your running cluster on the Ray with this head.")]


def run(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The scenario file (YAML), or the name of a shipped one.")
    ],
    name: RunningName = None,
    address: RunningAddress = None,
    html: Html = None,
    as_json: Json = False,
) -> None:
    """Run the steps of a scenario on a cluster of isray up, and report the result of each."""
    from experiments.engines.ray.session import expect_kills, stay_on_loopback
    from experiments.scenarios.loader import load_scenario, require_engine

    scenario = load_scenario(file_or_shipped(file, SCENARIOS, "a scenario file"))
    require_engine(scenario, "ray")
    expect_page(html)
    stay_on_loopback()
    expect_kills()
    from experiments.engines.ray.attached import ActionRefusedError, attached
    from experiments.engines.ray.connection import state_of
    from experiments.scenarios.explored import run_explored
    from experiments.scenarios.loader import require_running
    from experiments.scenarios.runner import Runner

    try:
        with attached(state_of(name, address)) as engine:
            require_running(scenario, engine.spec, topics_of(engine))
            require_whole(engine)
            runner = Runner(scenario, engine)
            result, explored = run_explored(runner, runner.run, scenario.name)
    except ActionRefusedError as error:
        fail(f"isray: {error}", {"error": str(error)} if as_json else None)
    shown = Exploration(html, None, explored if html is not None else None, None)
    print_result(as_json, result.document() | shown.document, print_scenario, result, shown)
    fail_if(not result.passed)


def topics_of(engine: AttachedEngine) -> set[str]:
    """The topics of the running cluster."""
    return {partition.topic for partition in running_partitions(engine)}


def running_partitions(engine: AttachedEngine) -> list[TopicPartition]:
    """The partitions of the running cluster. InputError where they are not known, since no controller is active."""
    if not engine.run_until(lambda: engine.published() is not None, WITHIN_MS):
        found = "a cluster without an active controller, so that its topics are not known"
        raise InputError("--name", "", found, "one that has a controller (isray status)")
    view = engine.published()
    assert view is not None
    return sorted(view.partitions)


def require_whole(engine: AttachedEngine) -> None:
    """InputError unless all nodes of the cluster run, no link is disturbed, and every broker is in service: an
    experiment would take what others have done for its own doing.
    """
    rows = engine.cluster.rows()
    for node in engine.spec.node_ids:
        state = rows[node].state.value if node in rows else "not there"
        if state != "running":
            raise InputError("--name", "", f"{node_name(node)}, which is {state}", "a cluster whose nodes all run")
    engine.cluster.require_whole_links()
    if not engine.run_until(lambda: engine.unfenced().issuperset(engine.spec.broker_ids), WITHIN_MS):
        fenced = sorted(set(engine.spec.broker_ids) - engine.unfenced())
        raise InputError("--name", "", f"broker {fenced[0]}, which is not in service", "a cluster in service")
