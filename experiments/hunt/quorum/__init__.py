"""Randomized tests of the metadata log's quorum alone: replicas of `protocol.quorum` in a simulated world with faults.

A run takes a third of a second, because nothing but the quorum runs: no brokers, topics or clients. The package answers
two questions after every step of a replica and at the end of a run, as Kafka's RaftEventSimulationTest and the
published TLA+ model of KRaft with reconfiguration (Vanlightly/kafka-tlaplus, kraft/kip_853) do:

- Safety: did anything happen that must never happen? (`safety.py`, checked after every step)
- Liveness: once all faults are healed, does everything happen that must happen? (`liveness.py`)

Neither asks a replica for its opinion. `global_view.py` derives what is committed, and who the voters are, from all
disks, so that a defect of a replica is not repeated in the check of it. This is about the quorum only; the invariants
of whole clusters are in `experiments/check`. docs/quorum.md has the modules.
"""
