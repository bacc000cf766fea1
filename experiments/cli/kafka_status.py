"""`isray status` of a cluster of Apache Kafka: what its supervisor has read from the controllers' disks."""

from __future__ import annotations

from experiments.cli.cluster import BrokerRow, ClusterDocument, ControllerRow, broker_state
from experiments.cli.output import fail
from experiments.engines.clusters.node_commands import Ask, NodeAction, NodeCommand, NodeRow, SupervisorGoneError
from protocol.ids import NO_LEADER, is_controller, node_name


def kafka_document(ask: Ask) -> tuple[ClusterDocument, tuple[NodeRow, ...]]:
    """The state of a cluster, and its processes. Exit code 1 where the supervisor does not answer."""
    try:
        answer = ask(NodeCommand(action=NodeAction.DESCRIBE))
    except SupervisorGoneError as error:
        fail(f"isray: {error}")
    report, running = answer.report, {row.node for row in answer.rows if row.pid is not None}
    assert report is not None, "the supervisor of a cluster of Apache Kafka describes it"
    brokers = [
        BrokerRow(
            node=node_name(it.broker),
            running=node_name(it.broker) in running,
            state=broker_state(it.fenced, it.in_controlled_shutdown),
            broker_epoch=it.broker_epoch,
            rack=it.rack,
            leads=it.leads,
            replicas=it.replicas,
        )
        for it in report.brokers
    ]
    names = {row.node for row in answer.rows} - {row.node for row in brokers}
    controllers = [
        ControllerRow(name, name in running, report.roles.get(node), node in report.voters, None, None)
        for name, node in sorted((name, int(name.rpartition("-")[2])) for name in names)
        if is_controller(node)
    ]
    has_majority = sum(row.votes and row.running for row in controllers) > len(report.voters) // 2
    is_active = report.controller != NO_LEADER
    is_whole = all(row.running and row.state == "unfenced" for row in brokers)
    document = ClusterDocument(
        controller=report.controller,
        controller_running=is_active,
        controllers=controllers,
        voters=list(report.voters),
        recovery_manager_running=False,
        brokers=brokers,
        others=[],
        features=report.features,
        healthy=has_majority and is_active and is_whole,
    )
    return document, answer.rows
