"""What a request costs a model, and what of a conversation fits into it."""
