"""The configuration file of a simulation: what it may say, and where in it a mistake is."""
