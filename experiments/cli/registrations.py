"""`isray cluster`: kafka-cluster.sh. The id of a running cluster, and the registrations of its brokers and controllers;
`isray cluster import`, which Kafka's tool does not have, reads the layout of a cluster of Apache Kafka.

The lines printed are those of Kafka 4.4.0. A request that the cluster refuses ends with exit code 1 and the error, also
where the metadata version has no registrations of controllers, in which case Kafka's tool exits with 0.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from experiments.cli.cluster_access import Target, administering, keep_options, numbers, on_cluster
from experiments.cli.help import App
from experiments.cli.output import Json, fail, option, print_result
from experiments.engines.admin_client import AdminClient
from experiments.support.errors import InputError, MissingInput
from protocol.config import INT_MAX

FAILING = "Error while executing cluster command"
Id = Annotated[int, typer.Option("--id", "-i", min=0, max=INT_MAX, help="The id of the node.")]

app = App("The id of a running cluster, and the registrations of its nodes.", callback=keep_options)


@app.register("cluster-id", "isray cluster cluster-id")
@on_cluster()
def cluster_id(target: Target) -> None:
    """The id of the cluster."""
    with administering(target, FAILING) as admin:
        found = admin.describe_quorum().cluster_id
    print_result(target.as_json, {"cluster_id": found}, typer.echo, f"Cluster ID: {found}")


@app.register("unregister", "isray cluster unregister --id 2")
@on_cluster()
def unregister(
    target: Target,
    broker_id: Id,
) -> None:
    """Remove the registration of a broker that will not return."""
    _unregister(target, AdminClient.unregister_broker, "broker", broker_id)


@app.register("unregister-controller", "isray cluster unregister-controller --id 1002")
@on_cluster()
def unregister_controller(
    target: Target,
    controller_id: Id,
) -> None:
    """Remove the registration of a controller that will not return; one that runs registers again."""
    _unregister(target, AdminClient.unregister_controller, "controller", controller_id)


@app.register("import", "isray cluster import --bootstrap-server localhost:9092 --out out/cluster.json")
def import_(
    context: typer.Context,
    out: Annotated[Path, option("FILE", "The file to write, for isray what-if --describe and for studies.")],
    bootstrap_server: Annotated[str | None, option("HOST:PORT,...", "Brokers of a cluster of Apache Kafka.")] = None,
    command_config: Annotated[Path | None, option("FILE", "A properties file as Kafka's clients take it.")] = None,
    racks: Annotated[Path | None, option("FILE", "Racks of brokers, also of those that are down.")] = None,
    as_json: Json = False,
) -> None:
    """Write the layout of a running cluster of Apache Kafka to a file; it needs isray[kafka] to be installed."""
    from experiments.studies.layouts.client_config import librdkafka_config
    from experiments.studies.layouts.importer import ClusterRefusedError, import_cluster
    from experiments.studies.layouts.reader import read_racks, written
    from experiments.support.atomic import write_text
    from experiments.support.properties import read_properties

    bootstrap = bootstrap_server or context.obj.bootstrap_server
    config = command_config or context.obj.command_config
    properties = {} if config is None else read_properties(config)
    bootstrap = bootstrap or properties.get("bootstrap.servers")
    if not bootstrap:
        raise MissingInput("--bootstrap-server", "brokers of a cluster of Apache Kafka, HOST:PORT,...")
    client = librdkafka_config(properties, str(config))
    try:
        found = import_cluster(bootstrap, client, {} if racks is None else read_racks(racks))
    except ClusterRefusedError as error:
        fail(f"{FAILING}: {error}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(out, json.dumps(written(found.layout, found.cluster_id)))
    except OSError as error:
        raise InputError("--out", "", f"{out}: {error.strerror}", "a file that can be written") from error
    layout, lists = found.layout, {"down": list(found.down), "without_rack": list(found.without_rack)}
    lines = [f"{out}: {len(layout.brokers)} brokers, {len(layout.topics)} topics, {layout.partitions} partitions"]
    if not layout.topics:
        lines.append("there is no topic that the principal may describe")
    if found.down:
        lines.append(f"down: {numbers(found.down)}")
    if found.without_rack:
        lines.append(f"rack unknown: {numbers(found.without_rack)}; --racks FILE gives the racks of all brokers")
    counts = {"brokers": len(layout.brokers), "topics": len(layout.topics), "partitions": layout.partitions}
    print_result(as_json, {"out": str(out), **counts, **lists}, typer.echo, "\n".join(lines))


def _unregister(target: Target, remove: Callable[[AdminClient, int], object], role: str, node: int) -> None:
    with administering(target, FAILING) as admin:
        remove(admin, node)
    done = f"{role.capitalize()} {node} is no longer registered."
    print_result(target.as_json, {f"{role}_id": node, "unregistered": True}, typer.echo, done)
