"""Metrics and health of the worker, kept out of the logic."""
