"""A cluster on Ray that outlives the command that started it: its state file, how it is started, ended and reached."""
