"""Kafka's wire protocol at a broker, as a state machine: bytes of connections in, bytes out; no socket, no clock."""
