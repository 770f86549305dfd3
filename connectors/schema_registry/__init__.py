"""A schema registry with Confluent's REST interface, whose state is a topic of the cluster."""
