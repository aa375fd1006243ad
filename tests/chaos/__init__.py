"""The fault harness: real processes, broken on purpose, and a checker of what must hold."""
