"""Argosy runs language models at any scale and tells you beforehand what that will take."""

__version__ = "0.1.0"
