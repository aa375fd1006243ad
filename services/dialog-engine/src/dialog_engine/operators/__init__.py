"""The commands for operators: `dialog-engine audit`."""
