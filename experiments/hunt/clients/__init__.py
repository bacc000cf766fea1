"""Search for defects of aiokafka: a workload of producers and consumers in virtual time, under the swarm's faults."""
