"""The part of the ray engine that keeps a cluster running for others (`isray up`), and what it shares with the rest."""
