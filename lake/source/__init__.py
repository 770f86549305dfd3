"""The Spark data source `lakehead`. Spark finds it by itself, through `pyspark_lakehead`."""
