"""What a cluster's partitions do after given failures, without rates: the controller's own decisions."""
