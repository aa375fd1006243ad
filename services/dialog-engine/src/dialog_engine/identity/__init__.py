"""Who makes a request: API keys, tokens and page sessions of an OpenID Connect provider, and failed attempts."""
