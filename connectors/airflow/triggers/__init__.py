"""Triggers: what the triggerer polls for deferred sensors and for assets."""
