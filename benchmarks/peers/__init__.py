"""The implementations that are measured, each with the same few verbs."""
