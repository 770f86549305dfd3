"""Sockets, frames, order of responses and back-pressure."""
