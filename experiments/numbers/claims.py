"""Section L of the requirements as a table: each claim with its source, what was run for it, and its measurement.

A claim of L is measured by running the nodes of the protocol on the simulator; a formula stands beside a measurement
(`Row.model`), never in its place. `limits.py` also reads values from the declarations that the nodes use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from experiments.numbers import (
    control,
    durability,
    failover,
    isr_changes,
    limits,
    reassignments,
    store_queue,
)
from experiments.numbers.conditions import Conditions, Row
from experiments.support.errors import InputError

Measure = Callable[[Conditions], list[Row]]


@dataclass(frozen=True, slots=True)
class Claim:
    """`text` is the claim, `source` where it is made, `ran` what was run to measure it, and `remark` what a reader of
    the rows should know. `grows`: whether its cost grows with the number of partitions.
    """

    item: str
    text: str
    source: str
    ran: str
    measure: Measure
    remark: str = ""
    grows: bool = False


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "L1",
        "10,000 partitions at 4 ms per store write take 40 s to fail over, one write after the other.",
        "S1, discussion 1",
        "A broker of `v3` that leads all partitions is killed; the controller writes over one session, one update per "
        "transaction. The same death in the later generations, whose messages take 1 ms more.",
        failover.serial,
        "S1 counts the writes only; the controller reads each state before it decides (A.3.1), since leaders may have "
        "changed it. Later generations append all changes to a log in one commit; their disks take no time here, so "
        "the model counts a write latency per commit.",
        grows=True,
    ),
    Claim(
        "L2",
        "Writing over n sessions takes 40/n s, so 4 s with 10; `multi` batches are the other cure, without a number.",
        'S1, discussion 1; its comments say "4 seconds each" and mean 4 ms',
        "The failover of L1 with several store sessions of the controller (`sessions`), and with several updates per "
        "transaction (`multi`), which are settings of the store.",
        failover.spread,
        "A transaction takes one write latency however many updates it has; a real store needs longer for larger ones. "
        "S1 wants `multi` for the reads, too, which ZooKeeper's did not have then: they are spread over sessions only. "
        "The last row needs none, since the controller is the only writer (B7).",
        grows=True,
    ),
    Claim(
        "L3",
        "A command through a queue in the store (ZKQueue) takes about 6 RPCs: 2 writes of 2 RPCs, 1 watch, 1 read; a "
        "direct command takes 1.",
        "S1, discussion 2",
        "Two clients of the store node send and take commands through child nodes; the commands of the controller are "
        "those of the failover of L1.",
        store_queue.rows,
        "A single command costs more than S1 counts: the receiver lists the children, and the deletion fires its watch "
        'once more. Many commands at once share both, and cost less. S1 says "roughly": the claim holds within a half.',
        grows=True,
    ),
    Claim(
        "L4",
        "A failover has six steps, of which step 3, publishing the new leaders, takes longest.",
        "S1, discussion 1",
        "The failover of L1, and again with a network that takes 1 ms more per message; the steps and their ends are "
        "those of `experiments/numbers/failover.py`.",
        failover.steps,
        "The crash of a broker adds the rest of its session timeout before step 2, which with few partitions is longer "
        "than step 3. In step 5 a follower that obeys its command before the leader does is refused, and fetches again "
        "after `replica.fetch.wait.max.ms` (500 ms).",
        grows=True,
    ),
    Claim(
        "L5",
        "A failover costs one store write per affected partition and one message per broker.",
        "S1, discussion 1",
        "The failover of L1: the updates in all transactions, and the LeaderAndIsr commands to the busiest broker.",
        failover.costs,
        grows=True,
    ),
    Claim(
        "L6",
        "The reassignment agent wakes up after about 30 s if nothing else wakes it.",
        "S1, section F",
        "A reassignment in `v3` whose new replica does not reach the leader; the times at which the controller reads "
        "the partition's state.",
        reassignments.agent_period,
        "The reads take their time after each wake-up.",
    ),
    Claim(
        "L7",
        "A broker has at most one replica of a partition.",
        "S1, paths",
        "An admin requests a topic with both replicas of its partition on one broker, in each generation.",
        limits.replicas_per_broker,
    ),
    Claim(
        "L8",
        "The controller hears of an ISR change after about 1 minute before KIP-497, and at once after it.",
        "S2, motivation",
        "A follower leaves an ISR and comes back, which is the second change within a minute; in `v3` with leaders "
        "that write ISRs, and with the controller as the only writer.",
        isr_changes.propagations,
        "The first change of a leader within a minute is announced at once; only those that follow wait, here a minute "
        'less the time between the two changes. "About" is within a tenth, "at once" within one write.',
    ),
    Claim(
        "L9",
        "Controlled shutdown takes up to 40 % less time if the controller need not read states again.",
        'S2, motivation ("a big grain of salt")',
        "A broker of `v3` that leads all partitions is shut down, in both modes of writing ISRs; from its request to "
        "the controller's response.",
        isr_changes.shutdowns,
        "What is saved is the reads, r / (r + w): 40 % where a read takes two thirds of a write, more where it takes "
        "longer, which the claim excludes (beyond a tenth). A broker waits 6 s for the response (three requests), then "
        "stops with the leaderships that it has.",
        grows=True,
    ),
    Claim(
        "L10",
        "A reassignment is complete sooner, since the controller need not wait for a notification of the ISR.",
        "S2, motivation; no number",
        "A reassignment whose leader has changed another ISR within the minute, in both modes of `v3` and in the later "
        "generations.",
        reassignments.delays,
        "Before, the controller does not look before the notification or the agent's next wake-up, whichever is first.",
    ),
    Claim(
        "L11",
        "A broker that comes back joins its ISRs by one AlterIsr per fetch instead of one write per partition, and "
        "does not drop out of an ISR meanwhile.",
        "S2, improved batching",
        "A follower of all partitions is killed, missed and started again, in both modes of `v3` and in `kip-497`.",
        isr_changes.returns,
        "In `v3` the controller still writes one node per partition, over one session here; `multi` and KRaft do not. "
        "If that takes longer than `request.timeout.ms` (30 s) the leader repeats its request. Leaders here do "
        "not stop for their writes, so no broker drops out in either mode.",
        grows=True,
    ),
    Claim(
        "L12",
        "A proactive recovery waits 5 s for the answers of replicas.",
        "S0, unclean recovery (older text; `unclean.recovery.timeout.ms` in the newer one)",
        "A recovery in `kip-966` that queries two replicas, of which one cannot answer.",
        durability.waits,
    ),
    Claim(
        "L13",
        "A DescribeTopic or ElectLeaders request has at most 20 topics, a GetReplicaLogInfo request 2,000 partitions.",
        "S0, public interfaces",
        "Requests of 20 and of 21 topics to a cluster of `kip-966`, and a recovery of 2,001 partitions.",
        limits.request_limits,
    ),
    Claim(
        "L14",
        "An ElectLeaders request times out after 60,000 ms.",
        "S0, public interfaces",
        "None: the default of the request, which clients send.",
        limits.election_timeout,
    ),
    Claim(
        "L15",
        "API keys 1, 3, 5, 43, 52, 53, 62, 69, 70; tags 1, 2, 8 and 6, 7, 8 and 10002; versions of Fetch, Vote, "
        "QuorumState, ElectLeaders and BrokerRegistration.",
        "S0, S3 and S4, public interfaces",
        "A message is encoded; the versions are those in the declarations by which the codec writes and reads.",
        limits.versions,
        "The claim does not hold for keys and tags: messages travel under their names, and their fields by position "
        "([messages](reference/messages.md)). Of the versions those are kept that two releases in one cluster have to "
        "agree on; ElectLeaders and BrokerRegistration have one version here.",
    ),
    Claim(
        "L16",
        "A reassignment may otherwise complete with one replica in the ISR; the newer rule requires min ISR.",
        "S0, AlterPartitionReassignments",
        "One of three replicas is replaced; before the new one has caught up, the two that stay are down.",
        reassignments.completions,
        "`kip-497` and `kip-966-elr` wait for the whole target, as Kafka's code does. `v3`, and `kip-966` with min ISR "
        "1, wait for a second copy as well (E32): one copy alone would be all that is left.",
    ),
    Claim(
        "L17",
        "Min ISR 2 with 3 replicas is the reference config of all ELR scenarios.",
        "S0, examples",
        "None: the scenarios `elr-*` that come with isray.",
        durability.reference_configs,
    ),
    Claim(
        "L18",
        "`kip-966` tolerates min ISR - 1 unclean shutdowns that lose what is not flushed.",
        "KIP-966 as published",
        "The ISR has shrunk to min ISR when records are acknowledged; every choice of that many members loses power, "
        "then all brokers start again.",
        durability.tolerated,
        "One more loss shows that the number is exact: then everything is lost. `isray fuzz` searches for losses "
        "within the tolerance at random.",
    ),
    Claim(
        "L19",
        "With acks=0 and 1, producing is the same as before; below min ISR consumers no longer read new records and "
        "the high watermark stays; when all replicas are fenced, a member of the ELR is elected.",
        "S0, Ack=0/1 comparison",
        "`kip-497` and `kip-966` with min ISR 2 and two of three replicas down; then with the last member of the ISR "
        "down, which loses what is not flushed, and another one back.",
        durability.comparison,
        'S0 on the current model: "only the last ISR member can be elected", "the system will take all the data loss '
        'that the last ISR member has"; on the proposed: "no guarantee on the ack=0/1 messages".',
    ),
    Claim(
        "L20",
        "TopicAuthorizedOperations is -2147483648 by default.",
        "S0, DescribeTopic",
        "A cluster of `kip-966` is asked for a topic that does not exist.",
        limits.sentinel,
    ),
    Claim(
        "L21",
        "A controller gives one place to debug, batched access to the store and so a faster failover, fewer watches, "
        "and cheaper messages; it costs its own failover.",
        "S1, overview",
        "The failover of L1, and the death of a controller that has no replicas.",
        control.benefits,
        "The model of watches and messages is a design without a controller, in which every replica watches its "
        "partition, and hears of each change by itself. A new controller reads every state before it commands.",
        grows=True,
    ),
)


def claims_of(items: Iterable[str]) -> tuple[Claim, ...]:
    """The claims of these items, all of them if none is named. InputError for an unknown one."""
    wanted = list(items)
    known = {claim.item: claim for claim in CLAIMS}
    for item in wanted:
        if item not in known:
            raise InputError("--only", "", repr(item), f"one of {', '.join(known)}")
    return tuple(claim for claim in CLAIMS if claim.item in wanted) if wanted else CLAIMS
