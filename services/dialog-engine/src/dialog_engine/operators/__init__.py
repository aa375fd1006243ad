"""The commands for operators: `trace`, `keys`, `audit`, `encrypt`, `split-media`, `move` and `retention`."""
