"""What a trial records: the rows of its trace, and the metrics that are measured by them."""
