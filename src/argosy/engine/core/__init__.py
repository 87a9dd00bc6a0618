"""Everything that decides, in plain Python: no I/O, no wall clock, no torch."""
