"""The commands for operators: `audit`, `trace`, `keys`, `subjects`, `usage`, `encrypt`, `split-media`, `move`,
`retention`, `backup` and `restore`.
"""
