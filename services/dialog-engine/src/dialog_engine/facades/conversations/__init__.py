"""Conversations of OpenAI's API, each of which is a session, and their items."""
