"""Readers of published data sets: MNIST, CIFAR, Tiny-ImageNet, digits."""
