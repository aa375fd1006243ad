"""Turns: `service` produces the events of one, `turns` runs them, `ownership` adopts those of dead engines."""
