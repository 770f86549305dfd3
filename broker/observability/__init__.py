"""What a node shows of itself: metrics by name, over HTTP."""
