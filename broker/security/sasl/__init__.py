"""SASL mechanisms as state machines: messages in, outcomes out, no input or output of their own."""
