"""Vectors recorded from a release of Apache Kafka: its own controller code, run beside random events."""
