"""Where a key lives: partition functions."""
