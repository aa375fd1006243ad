"""In-process fakes of the ports: what the core needs from the world, without Redis, SQLite or a provider.

They keep the promises of the ports, which `tests/contract/ports` holds them to, and can be made slow or made to fail.
"""
