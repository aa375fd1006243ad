"""What subjects consume: their limits, what they use now, and what was used by day."""
