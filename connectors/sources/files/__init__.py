"""Files, in a folder or an object store, into a topic: JSON lines, CSV, Parquet."""
