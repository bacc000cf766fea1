"""KRaft: one replica of the metadata log; its theory is at the top of `replica.py`."""
