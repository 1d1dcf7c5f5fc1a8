"""Speed and memory against stock OpenNMT-py: `python -m benchmarks`."""
