"""Transactions: the state of every transactional id, and the shell that stores and ends them."""
