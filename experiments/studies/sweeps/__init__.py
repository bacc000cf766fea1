"""The trials of a study, run on Ray and kept in its output directory."""
