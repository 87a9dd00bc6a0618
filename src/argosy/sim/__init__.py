"""The simulator: the engine's own scheduler on a virtual clock, with time charged from the cost model."""
