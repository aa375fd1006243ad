"""A model that can call tools: `enhance` wraps a client, `pipeline` tells the story, `processors` are its steps."""
