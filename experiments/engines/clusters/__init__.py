"""Clusters of a user that run: their state files, the commands of a supervisor, starts in the background."""
