"""`on_controller_failover`: what a broker does that has been elected controller (S1 D; A33, M33).

    3. read the requests for reassignments, the live brokers, the topics, and leader and ISR of each partition
    4. send INIT to every live broker: all that it holds, in one request; commands of the former controller may be lost
    5. on_broker_change(), which ends with step 6: init_leaders() for partitions that have none
    7. on_partitions_reassigned()   8. on_partitions_add()   9. on_partitions_remove()

Watches are set by the reads themselves, so what changes after a read makes an event. A watch that is set after the read
misses what happens in between.

Departures. S1 reads reassignments in step 7, after INIT; but a replica that a reassignment adds is not assigned yet,
and would be deleted by an INIT that does not name it: so they are read first. S1 sends INIT to
"relevant" brokers; a broker that holds nothing any more is one, since its StopReplica may be what was lost. INIT goes
to live brokers only (A36), which are therefore read before.

A node that is damaged raises an alert and is left alone, and INIT deletes nothing while there is one.

Guards, each a candidate for a mutant:

| guard | where | without it |
|---|---|---|
| a decision requires the version it was made on | `publishing.publication` | a newer ISR is overwritten (M28) |
| a conflict starts again at the read | `publishing.change_states` | a broker is elected that has left the ISR |
| every write checks `/controller_epoch` | `runner.Runner._fence_of` | a deposed controller decides (M34) |
| the race increments the epoch in its own transaction | `election.elect` | two controllers have one epoch |
| the watch on `/controller` is set before the race | `election.elect` | a loser misses the winner's death |
| reads set the watch | `publishing.children` | a change between read and watch is missed |
| requests are read before INIT | `on_controller_failover` | INIT deletes replicas that are being added |
| INIT names target and ISR beside the assignment | `decisions.holders` | INIT deletes members of the ISR |
| INIT deletes nothing while a node is damaged | `context.Controller.init` | a damaged node costs its replicas |
| a replaced broker has been dead | `on_broker_change` | a leader goes on in its epoch with a shorter log |
| a broker that comes back gets INIT | `on_broker_change` | it misses what was decided while it started |
| the ISR stays when the leader becomes -1 | `decisions.after_broker_change` | an ISR member returns uncleanly |
| only elections set and clear the unclean flag | `decisions.after_broker_change` | the data-loss hook is not run |
| a leader changes only the ISR, conditionally | `isr_updates.write_isrs` | it evicts its successor (M30) |
| a leader uses a smaller ISR after the write (A48) | callers of `write_isrs` | a new leader lacks committed records |
| AlterPartition is checked: leader, epochs, version | `decisions.check_proposal` | a deposed leader changes the ISR |
| added replicas are in the ISR before the switch | `decisions.reassigned` | replicas that lag are kept or elected |
| ISR, assignment and request change together | `reassignments._switch` | a crash in between leaves them apart |
| StopReplica carries the leader epoch | `topics.stop_replicas` | a delayed one stops a replica added again |
| partitions begin above the epochs of removed ones | `partitions._reduce` | the same |
| topics are compared by id | `on_topic_change` | a recreated topic goes on with old logs |
| writes check that the topic still has its id | `procedure.same_topic` | they change a later topic of its name (N11) |
| the node of a removed partition stays | `partitions._reduce` | its former leader changes a later one (M30) |
| the request is removed last | `on_partitions_add` | a crash loses the partition (A22) |
"""

from __future__ import annotations

from protocol.v3.controller.broker_changes import on_broker_change
from protocol.v3.controller.context import Controller
from protocol.v3.controller.isr_updates import on_isr_change, remove_notifications
from protocol.v3.controller.partitions import on_partitions_add, on_partitions_remove
from protocol.v3.controller.procedure import Procedure
from protocol.v3.controller.publishing import read_brokers, read_states, read_topics
from protocol.v3.controller.reassignments import on_wakeup, read_moves


def on_controller_failover(controller: Controller) -> Procedure[None]:
    """Takes over from the former controller. Steps 1 and 2 are `election.elect`."""
    controller.live = yield from read_brokers(controller)
    controller.topics = yield from read_topics(controller)
    yield from read_states(controller, controller.partitions())
    yield from read_moves(controller)
    yield controller.init(sorted(controller.live))
    yield from on_broker_change(controller)
    yield from on_wakeup(controller)
    yield from on_partitions_add(controller)
    yield from on_partitions_remove(controller)
    yield from remove_notifications()
    if controller.settings.leaders_write_isr:
        yield from on_isr_change(controller)
