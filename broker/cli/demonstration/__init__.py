"""The parts of `lakehead demo`: real data, a broker, a client, one query run three ways."""
