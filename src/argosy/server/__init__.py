"""The OpenAI protocol over HTTP in front of one engine."""
