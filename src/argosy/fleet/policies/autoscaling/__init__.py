"""How many replicas there should be: policies say what is wanted, the autoscaler decides when to act. See README.md."""
