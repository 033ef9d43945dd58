"""`ssfl certs`: a certificate authority for tests and small federations. No connections."""
