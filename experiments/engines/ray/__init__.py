"""Parts of the ray engine: what keeps a cluster running for others (`isray up`), what reads its nodes' directories."""
