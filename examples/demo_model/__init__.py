"""A scripted demo model, not an AI: keyword rules behind the OpenAI chat-completions protocol.

`request` parses a request into a `conversation`; `script` plans the next message with `skills`, `loops` and `talk`;
`wire` encodes the plan as chunks; `app` serves it over HTTP.
"""
