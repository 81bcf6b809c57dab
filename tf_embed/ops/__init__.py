"""Raw ops with checked arguments and gradients: what the op library offers, in Python."""
