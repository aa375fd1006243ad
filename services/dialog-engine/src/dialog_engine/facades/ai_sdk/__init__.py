"""The Vercel AI SDK: its stream of parts, and the routes that its transport uses."""
