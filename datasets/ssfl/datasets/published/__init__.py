"""Readers of published data sets: MNIST, CIFAR, Tiny-ImageNet, digits.

Nothing here is cut among clients.
"""
