"""Integer operators (QLinear*, *Integer, contrib ops) and their Q/DQ forms: one table, both directions."""
