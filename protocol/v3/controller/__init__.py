"""What a broker of generation `v3` does while it is the controller, and the procedures that it runs."""
