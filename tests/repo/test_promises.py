"""What is promised is listed, and `make test` proves it."""

from tests.promises import LIST, promised, proofs


def test_a_promise_that_comes_or_goes_is_seen_in_the_list() -> None:
    assert LIST.read_text() == promised(), "`python -m tests.promises --write` writes it"


def test_make_test_proves_every_promise_that_needs_nothing_special() -> None:
    proved = {proof.promise for proof in proofs() if proof.in_make_test}
    excepted = {proof.promise for proof in proofs() if proof.only_in_test_all}

    assert {proof.promise for proof in proofs()} - proved == excepted
