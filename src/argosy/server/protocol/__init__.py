"""Types of the OpenAI HTTP protocol as this package speaks it; they know nothing of an engine."""
