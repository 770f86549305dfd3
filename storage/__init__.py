"""Stream storage: bytes, offsets and objects. Knows nothing of Kafka requests, Spark or Airflow."""
