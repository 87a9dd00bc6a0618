"""`python -m argosy` is `argosy`."""

from argosy.cli.main import main

if __name__ == "__main__":
    main()
