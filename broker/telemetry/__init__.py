"""Telemetry of clients (KIP-714): subscriptions, pushed metrics, and where these go."""
