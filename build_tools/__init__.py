"""What only builds the compiled extension (`setup.py`)."""
