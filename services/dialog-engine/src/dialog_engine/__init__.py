"""The chat engine: streams turns to browsers and drives their tool calls through the outbox.

A turn, from the outside in: `http` takes the message, `chat` owns the turn, `tool_calls` runs the pipeline, `llm`
speaks to the model, `storage` commits, `streams` talks to Redis. `wiring` puts them together.
"""
