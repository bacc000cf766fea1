"""`isray soak`: a cluster on Ray under load and faults for a given time, and the check of its history."""
