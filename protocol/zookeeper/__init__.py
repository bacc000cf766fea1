"""The control plane of generation `v3`: a store as ZooKeeper's, and what its clients do with it."""
