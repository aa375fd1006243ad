"""The seven steps of a turn, in the order in which the pipeline runs them."""
