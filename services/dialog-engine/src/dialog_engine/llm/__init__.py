"""The model: clients for its providers through their SDKs, and the pure rules by which answers are decoded."""
