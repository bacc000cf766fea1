"""Classic consumer groups: membership and committed offsets, kept in the replicated topic `__consumer_offsets`."""
