"""The commands for operators: `dialog-engine keys`, `audit`, `encrypt`, `split-media`, `move`, `retention`."""
