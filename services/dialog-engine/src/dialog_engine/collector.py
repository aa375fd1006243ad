"""How Python's collector of cyclic garbage runs in an engine."""

import gc

THRESHOLDS = (2_000, 10, 1_000)
"""A full collection comes after a growth of 20 million objects, not of 70 thousand."""


def calm_collector() -> None:
    """Make full collections rare. Each stops the engine for as long as it takes to look at every object there is: with
    ten thousand waiting calls for half a second, and with Python's own settings every few seconds.

    What is loaded so far is never looked at again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
