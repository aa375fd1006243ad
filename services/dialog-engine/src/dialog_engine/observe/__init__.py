"""Metrics and logs, kept out of the logic: observed wrappers of ports count what passes through them."""
