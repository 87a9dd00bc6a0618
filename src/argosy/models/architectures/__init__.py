"""Readable torch modules, one file per family: the reference for every faster path."""
