"""Fuzzing of everything that reads bytes of clients, of the object store and of a log's device."""
