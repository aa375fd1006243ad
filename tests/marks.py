"""What tests say of themselves: which promise they prove, and whether `make test` runs them.

`python -m tests.promises` prints what they say. pytest selects by them: `-m promise`, `-m "smoke or not exhaustive"`.
"""

import pytest

promise = pytest.mark.promise
"""`@promise("…")`: the product promises this, and the test fails when it does not hold. Several tests may prove one
promise: they say it in the same words. Every promise has a test that `make test` runs, or one that says why it has none
there: `@promise("…", only_in_test_all="needs Docker")`."""

exhaustive = pytest.mark.exhaustive
"""`@exhaustive("why")`, or in `pytestmark` for a whole file: only `make test-all` runs it."""

smoke = pytest.mark.smoke
"""A test of an exhaustive file that `make test` runs all the same."""
