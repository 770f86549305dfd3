"""SQL over topics and tables: the shell of `lakehead sql`, and its views."""
