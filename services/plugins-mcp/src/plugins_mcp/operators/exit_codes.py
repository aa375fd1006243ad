"""The exit codes of the commands for operators, as docs/runbook.md names them."""

DONE, NOT_DONE, WRONG, UNREACHABLE, INTERRUPTED = 0, 1, 2, 3, 130
