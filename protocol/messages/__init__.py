"""All messages and metadata records. Importing the package registers them for `codec.decode`."""

from __future__ import annotations

from protocol.messages import cluster, commands, configs, partitions, quorum, recovery, store, topics, v3

__all__ = ["cluster", "commands", "configs", "partitions", "quorum", "recovery", "store", "topics", "v3"]
