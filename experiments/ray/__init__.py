"""The part of the ray engine that keeps a cluster running for others (`isray up`)."""
