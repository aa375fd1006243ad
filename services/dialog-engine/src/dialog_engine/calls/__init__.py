"""The tool calls that this engine waits for: their requests, their replies, and what was lost of them."""
