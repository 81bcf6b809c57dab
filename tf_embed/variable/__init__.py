"""`Variable`, lookups in it, and the anchor by which gradients reach it."""
