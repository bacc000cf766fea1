"""A quorum of replicas of the metadata log alone, under faults: the world, what must hold in it, drawn runs."""
