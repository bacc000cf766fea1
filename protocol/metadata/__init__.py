"""The cluster's metadata: the image that records build, partition states, and queries on them."""
