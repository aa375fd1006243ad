"""Readiness, metrics and logs, kept out of the logic: wrappers of ports count what passes through them."""
