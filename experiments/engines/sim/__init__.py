"""The sim engine: nodes, network and disks of a cluster in one process, under virtual time."""
