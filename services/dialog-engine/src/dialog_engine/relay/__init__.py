"""Publishes committed outbox rows to Redis, in fair shares per subject."""
