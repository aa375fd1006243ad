"""Responses of OpenAI's API: a response is a part of a turn."""
