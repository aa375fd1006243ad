"""What is stored of a person: its export, its erasure, and how long it is kept."""
