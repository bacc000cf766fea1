"""Trials on real processes: a cluster of actors with real disks, in real time, goes through a timeline of failures."""
