"""Settings from files: YAML with the line of every value, and frozen dataclasses from it, strict about every key."""
