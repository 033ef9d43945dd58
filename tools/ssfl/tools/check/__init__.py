"""`ssfl check`: whether this site can take part, tried without joining."""
