"""The search for defects: `fuzz`, `mutants`, `explore`, `soak`, and `quorum` for the metadata log alone."""
