"""FLOPs, bytes, seconds, joules and dollars: one model that answers every quantitative question, with its provenance."""
