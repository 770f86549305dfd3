"""Quotas of clients, by Kafka's model: limits of entities, measured rates, and throttle times."""
