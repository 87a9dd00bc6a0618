"""What the system tells people: statistics, metrics, logs."""
