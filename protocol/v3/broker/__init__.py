"""A broker of generation `v3`: its session with the store, and the commands that it obeys."""
