"""How calls and results are written as text: one file per dialect. How they are read is in `parsers`."""
