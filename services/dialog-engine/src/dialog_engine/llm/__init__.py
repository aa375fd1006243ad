"""The model: a client for OpenAI-compatible providers, and the pure rules by which their streams are read."""
