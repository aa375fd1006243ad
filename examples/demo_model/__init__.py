"""A scripted demo model, not an AI: keyword rules behind the OpenAI chat-completions protocol.

`request` reads a request into a `conversation`; `script` plans the next message out of `skills`, `loops` and `talk`;
`wire` spells the plan as chunks; `app` is the HTTP around it.
"""
