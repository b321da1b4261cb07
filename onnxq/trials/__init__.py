"""Plans tried on samples in one float session: which layers cost accuracy."""
