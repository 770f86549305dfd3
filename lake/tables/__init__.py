"""Topics as tables: values to columns, Parquet files with statistics, commits that happen once."""
