"""CSV and Parquet files as data sets."""
