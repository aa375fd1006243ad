"""The commands of `dialog-engine` for operators: `trace`, `keys`, `audit`, `encrypt`, `split-media` and `move`."""
