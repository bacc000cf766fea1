"""Unclean recovery: tasks, ranking of replicas, and the Broker Request Sender (docs/recovery.md)."""
