"""The log of each turn: in memory at the engine that runs the turn, and stored in Redis for all others."""
