"""Where a simulation's requests come from: recorded traces, generators, and what reshapes and merges them."""
