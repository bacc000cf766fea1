"""The hunt for defects: clusters drawn at random, broken, healed and judged; what is found is shrunk and replayed."""
