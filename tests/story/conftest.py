"""Fixtures of the tutorial: the bench of the contract tests, for the file about the ledger."""

from tests.contract.conftest import bench

__all__ = ["bench"]
