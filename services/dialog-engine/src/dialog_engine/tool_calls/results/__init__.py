"""Results of tool calls: how they are shortened, shown to users and models, and read in pages."""
