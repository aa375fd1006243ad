"""Builds the engine, owns its parts, and shuts them down."""
