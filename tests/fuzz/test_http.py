"""Raw bytes to the engine's port: heads, chunks, requests behind each other, all of them broken somewhere.

Each connection gets answers with a status below 500, or none, and is closed within the deadlines. The engine serves
others after each attempt.
"""
