"""Tool calls of a turn, from what a model is offered to the results that it reads.

`pipeline` and `processors` are the steps of a turn, `execution` commits and runs the calls of one round, and `ports` is
what they need from other packages. Each subpackage is one subject: `approvals`, `exposure`, `prompt_mode`, `results`.
"""
