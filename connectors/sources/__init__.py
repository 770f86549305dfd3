"""Sources: from the outside world into a topic."""
