"""Tool calls for models without function calling: written as tags in the text, and parsed from it."""
