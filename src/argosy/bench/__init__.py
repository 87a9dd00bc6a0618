"""Measuring: the engine in this process, and any OpenAI-compatible server under load. Imports no torch by itself."""
