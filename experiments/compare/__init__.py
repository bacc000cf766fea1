"""One scenario in several worlds, state by state: engines, and releases of Kafka."""
