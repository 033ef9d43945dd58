"""Readers of published data sets: MNIST, CIFAR, Tiny-ImageNet, digits.

No other room downloads, and nothing here trains.
"""
