"""The commands for operators: `dialog-engine audit` and `dialog-engine encrypt`."""
