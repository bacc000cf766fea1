"""Which broker holds which replica of a whole cluster: read from what Kafka's tools print, or made by a rule."""
