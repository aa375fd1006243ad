"""Protocols of other clients, as encoders over the logs of turns and routes that use them."""
