"""`isray cluster`: kafka-cluster.sh. The id of a running cluster, and the registrations of its brokers and controllers.

The lines printed are those of Kafka 4.4.0. A request that the cluster refuses ends with exit code 1 and the error, also
where the metadata version has no registrations of controllers, in which case Kafka's tool exits with 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from experiments.cli.cluster_access import (
    Bootstrap,
    CommandConfig,
    OwnCluster,
    Principal,
    Target,
    administering,
    keep_options,
    target_of,
)
from experiments.cli.help import App
from experiments.cli.output import Json, print_result
from experiments.engines.admin_client import AdminClient
from protocol.config import INT_MAX

FAILING = "Error while executing cluster command"
Id = Annotated[int, typer.Option("--id", "-i", min=0, max=INT_MAX, help="The id of the node.")]

app = App("The id of a running cluster, and the registrations of its nodes.", callback=keep_options)


@app.register("cluster-id", "isray cluster cluster-id")
def cluster_id(
    context: typer.Context,
    bootstrap_server: Bootstrap = None,
    name: OwnCluster = None,
    command_config: CommandConfig = None,
    principal: Principal = None,
    as_json: Json = False,
) -> None:
    """The id of the cluster."""
    target = target_of(bootstrap_server, name, as_json, command_config, principal, context)
    with administering(target, FAILING) as admin:
        found = admin.describe_quorum().cluster_id
    print_result(target.as_json, {"cluster_id": found}, typer.echo, f"Cluster ID: {found}")


@app.register("unregister", "isray cluster unregister --id 2")
def unregister(
    context: typer.Context,
    broker_id: Id,
    bootstrap_server: Bootstrap = None,
    name: OwnCluster = None,
    command_config: CommandConfig = None,
    principal: Principal = None,
    as_json: Json = False,
) -> None:
    """Remove the registration of a broker that will not return."""
    target = target_of(bootstrap_server, name, as_json, command_config, principal, context)
    _unregister(target, AdminClient.unregister_broker, "broker", broker_id)


@app.register("unregister-controller", "isray cluster unregister-controller --id 1002")
def unregister_controller(
    context: typer.Context,
    controller_id: Id,
    bootstrap_server: Bootstrap = None,
    name: OwnCluster = None,
    command_config: CommandConfig = None,
    principal: Principal = None,
    as_json: Json = False,
) -> None:
    """Remove the registration of a controller that will not return; one that runs registers again."""
    target = target_of(bootstrap_server, name, as_json, command_config, principal, context)
    _unregister(target, AdminClient.unregister_controller, "controller", controller_id)


def _unregister(target: Target, remove: Callable[[AdminClient, int], object], role: str, node: int) -> None:
    with administering(target, FAILING) as admin:
        remove(admin, node)
    done = f"{role.capitalize()} {node} is no longer registered."
    print_result(target.as_json, {f"{role}_id": node, "unregistered": True}, typer.echo, done)
