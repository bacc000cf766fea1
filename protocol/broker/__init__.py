"""The parts of a broker: leading, following, ISR changes, lifecycle; `nodes/broker.py` connects them."""
