"""Workers: one runtime on several cores, each with the events of its share of the keys."""
