"""The rule `ChangesAreAuthorized`: silent while the authorizer is asked, it fires when a guard lets all through."""

from __future__ import annotations

from dataclasses import replace

import pytest

from experiments.engines.admin_requests import alter_config, create_topic, delete_topic, reassign
from experiments.engines.sim.network import NetworkModel
from protocol.config import ClusterConfig
from protocol.controller import topics
from protocol.features import Generation
from protocol.messages.acls import CLUSTER_NAME, AclEntry, AclOperation, AclResourceType, CreateAclsRequest
from protocol.messages.admin import AdminRequest
from protocol.messages.commands import AdminCommand
from protocol.metadata import authorizer
from tests.sim.scenario_helpers import ClusterSpec, running_engine


def acl_entry(topic: str | None, principal: str, operation: AclOperation) -> AclEntry:
    """An entry that allows the operation on a topic, or on the cluster (None)."""
    kind = AclResourceType.CLUSTER if topic is None else AclResourceType.TOPIC
    return AclEntry(resource_type=kind, resource_name=topic or CLUSTER_NAME, principal=principal, operation=operation)


@pytest.mark.covers("G32")
@pytest.mark.parametrize(
    ("request_", "principal", "may"),
    [
        (delete_topic("t"), "User:alice", True),
        (delete_topic("t"), "User:bob", False),
        (create_topic("u", ((0,),), {}), "User:carol", True),
        (create_topic("u", ((0,),), {}), "User:alice", False),
        (alter_config("t", {"flush.ms": 9}), "User:bob", True),
        (alter_config(None, {"flush.ms": 9}), "User:bob", False),
        (reassign("t", 0, (0, 1)), "User:carol", False),
        (reassign("t", 0, (0, 1)), "User:root", True),
    ],
)
@pytest.mark.parametrize("is_guarded", [True, False])
def test_a_change_by_a_principal_without_the_right_is_a_violation(
    request_: AdminRequest, principal: str, may: bool, is_guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alice may delete topic t, Bob alter its configs, Carol create topics; without the guard all may do anything."""
    config = ClusterConfig.of(Generation.KIP_966, {"authorizer.class.name": "standard", "super.users": "User:root"})
    engine = running_engine(2_000, ClusterSpec(3, 1, config, 0), NetworkModel(1, 0))
    entries = (
        acl_entry("t", "User:alice", AclOperation.DELETE),
        acl_entry("t", "User:bob", AclOperation.ALTER_CONFIGS),
        acl_entry(None, "User:carol", AclOperation.CREATE),
    )
    setting_up = [create_topic("t", ((0, 1, 2),), {}), CreateAclsRequest(correlation_id=0, creations=entries)]
    for number, first in enumerate(setting_up):
        asked = replace(first, principal="User:root")
        engine.submit(AdminCommand(command_id=number, request=asked))
        engine.run_for(1_000)
    if not is_guarded:
        for module in (authorizer, topics):
            monkeypatch.setattr(module, "may", lambda *args: True)
    engine.submit(AdminCommand(command_id=9, request=replace(request_, principal=principal)))
    engine.run_for(1_000)
    found = [violation.invariant for violation in engine.violations()]
    assert found == ([] if is_guarded or may else ["ChangesAreAuthorized"])
