"""What other processes tell this engine through Redis: workers their tools, engines that something has changed."""
