"""What runs a step."""
