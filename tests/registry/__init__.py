"""The judgements of the schema registry beside those of Avro's Java library."""
