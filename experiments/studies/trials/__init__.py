"""One trial of a study, and batches of trials."""
