"""The parts of a client: producing, consuming, administration; `nodes/client.py` connects them."""
