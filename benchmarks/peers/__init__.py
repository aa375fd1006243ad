"""The same call through other task queues: see `python -m benchmarks.peers --help`."""
