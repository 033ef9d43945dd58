"""`ssfl check`: whether this site can take part. It never joins."""
