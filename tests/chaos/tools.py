"""The names of the two tools that the harness calls."""

SERVER = "effects"
ONCE, REPEATABLE = "once_effect", "repeatable_effect"
