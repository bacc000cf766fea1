"""Decisions and event sequences of Apache Kafka's controller, replayed and compared field by field."""
