"""Metrics, logs and health of the worker, kept out of the logic: observers of the facts that the core reports."""
