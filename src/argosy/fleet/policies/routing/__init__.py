"""Which replica serves a request: filters, then weighted scorers in [0, 1], then a picker. See README.md."""
