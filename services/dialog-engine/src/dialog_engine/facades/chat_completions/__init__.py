"""Chat Completions of OpenAI's API, for its SDKs and the pages that are made for them."""
