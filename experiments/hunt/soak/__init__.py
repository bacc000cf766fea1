"""`isray soak`: a cluster under load and under faults for as long as one likes, and the judgement on its history."""
