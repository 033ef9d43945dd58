"""What a run costs: bytes by phase and client, sockets, memory. It decides nothing in a run."""
