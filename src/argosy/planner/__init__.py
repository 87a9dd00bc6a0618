"""What to buy and how to shard it: a search over the cost model, and explanations from its numbers."""
