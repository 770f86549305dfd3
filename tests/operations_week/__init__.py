"""A week of an operator's work on one cluster, in minutes, beside clients that see no error."""
