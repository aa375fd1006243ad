"""Random input, checked by rules that know nothing of the code under test."""
