"""Topics of another Kafka cluster, brought into a store with their offsets kept."""
