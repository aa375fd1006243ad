"""Relays of a model's tokens, measured side by side: Callstream, a naive relay, and LiteLLM's proxy if installed."""
