"""The engine `kafka`: a cluster of a real Apache Kafka, or of another broker that speaks Kafka's protocol."""
