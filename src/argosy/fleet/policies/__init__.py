"""Decisions about a fleet: plain Python that takes a time, a random stream and numbers, and returns a decision."""
