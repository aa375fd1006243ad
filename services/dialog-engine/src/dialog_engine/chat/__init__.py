"""Turns: `service` tells what happens in one, `turns` owns those that run, `history` says what a model remembers."""
