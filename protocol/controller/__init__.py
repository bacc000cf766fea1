"""The controller's decisions on partitions, brokers, topics and configs, as functions of its state."""
