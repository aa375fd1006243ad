"""What the processes of Callstream share to run: how they reach Redis, are configured, and are observed.

It knows the contract (`plugins_contract`), which does not know it, and neither service.
"""
