"""The live gateway: authenticates, admits, queues, routes and proxies requests to the backends of a fleet."""
