"""Garbage collection in a service: full collections are rare, and skip what was loaded at the start."""

import gc

THRESHOLDS = (2_000, 10, 1_000)
"""A full collection begins after 20 million new objects, not after 70 thousand."""


def tune_gc() -> None:
    """Enable garbage collection, make full collections rare, and exclude what is loaded so far from them.

    A full collection visits every object and stops the event loop meanwhile: with ten thousand waiting calls for half a
    second, and with Python's own thresholds every few seconds.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    gc.enable()
