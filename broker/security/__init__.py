"""Security of a broker, by Kafka's model: principals, access rules, and how clients prove names."""
