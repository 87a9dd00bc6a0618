"""The `argosy` command."""
