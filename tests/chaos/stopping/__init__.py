"""Users of the scenario `stops`: when they press Stop, and what must be then."""
