"""CSV and Parquet files as data sets. No images, no downloads and no torch."""
