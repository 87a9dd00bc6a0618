"""One replica: decisions (`core`), execution (`executors`), and the loop that joins them."""
