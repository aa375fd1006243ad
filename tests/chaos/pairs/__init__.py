"""Two faults within seconds: what is struck, and what became of the calls that were open then."""
