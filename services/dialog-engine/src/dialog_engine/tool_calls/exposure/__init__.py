"""Which tools a model is offered, and how a call is resolved to one of them."""
