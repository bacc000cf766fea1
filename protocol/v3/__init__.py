"""Generation `v3`: a store as ZooKeeper's, which keeps the cluster's metadata, the controller, and its brokers."""
