"""Sources and sinks, joined: what can be run."""
