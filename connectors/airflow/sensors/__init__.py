"""Sensors: tasks that wait for a topic or its table."""
