"""The store: sessions, turns, calls and the outbox in one SQL database. One set of statements, two drivers."""
