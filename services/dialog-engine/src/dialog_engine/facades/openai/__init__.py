"""What the protocols of OpenAI share: errors, objects, fields of requests, and where a question belongs."""
