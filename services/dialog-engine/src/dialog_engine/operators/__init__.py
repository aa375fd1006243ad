"""The commands for operators: `dialog-engine keys`, `dialog-engine audit` and `dialog-engine encrypt`."""
