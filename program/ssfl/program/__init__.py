"""Code that every program shares: settings, logs, exit codes, TLS, metrics, model files."""
