"""Scripts that use the studies as a user's script does: with the names that `experiments.studies` exports."""
