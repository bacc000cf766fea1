"""From when on a follower counts as silent. What a leader does about it: `test_partition_leader.py`."""

from __future__ import annotations

import pytest

from protocol.broker.isr_shrink import LAG_PREFIX, SILENT_PREFIX
from protocol.messages.control import AlterPartitionRequest
from tests.unit.protocol.broker.test_partition_leader import LAG_MS, proposed
from tests.unit.protocol.node_helpers import BrokerBench, config_of, topic_records


@pytest.mark.covers("A44")
def test_silence_from_before_the_leader_epoch_does_not_count() -> None:
    """A follower of other partitions has fetched last a whole lag ago; this partition begins 10 ms before that."""
    bench = BrokerBench(config=config_of(replica_lag_time_max_ms=LAG_MS)).run()
    bench.now_ms = LAG_MS - 10
    bench.publish(*topic_records(1))
    bench.fire(f"{SILENT_PREFIX}1", at_ms=LAG_MS)
    assert bench.sends(AlterPartitionRequest) == []
    bench.fire(f"{LAG_PREFIX}1", at_ms=2 * LAG_MS - 10)
    assert proposed(bench) == [0]
