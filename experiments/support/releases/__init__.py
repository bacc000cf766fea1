"""Releases of Apache Kafka on this machine: the files of a Maven repository, installed releases, the JDK."""
