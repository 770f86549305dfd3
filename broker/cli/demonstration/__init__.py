"""The parts of `lakehead demo`: real data, a broker, a client, one question asked three ways."""
