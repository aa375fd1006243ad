"""Fixtures of the stories: the bench of the contract tests, for the one about the ledger."""

from tests.contract.conftest import bench

__all__ = ["bench"]
