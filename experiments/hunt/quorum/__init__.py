"""Randomized tests of the metadata log's quorum alone: replicas of `protocol.quorum` in a simulated world with faults
(docs/quorum.md). Safety is checked after every step, liveness once all faults are healed, as in Kafka's
RaftEventSimulationTest and the published TLA+ model of KRaft with reconfiguration (Vanlightly/kafka-tlaplus,
kraft/kip_853), from the disks alone (`global_view.py`), so that a defect of a replica is not repeated in the check.
"""
