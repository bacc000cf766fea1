"""What every package above uses: errors of input, durations, YAML reading, processes."""
