"""Rows in checkpoints, Keras files and row files."""
