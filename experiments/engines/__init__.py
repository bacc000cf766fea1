"""What runs a cluster: `port.py` is the interface, `sim` and `ray` implement it."""
