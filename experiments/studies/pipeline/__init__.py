"""The only place that imports pyspark: from the traces of a sweep to the sums that a study's numbers are made of."""
