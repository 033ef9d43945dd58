"""A comparison of methods: the same data, seeds and clients, and a learning rate for each."""
