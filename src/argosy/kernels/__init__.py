"""The hot loops of the CPU executor: machine code generated for the processor at hand, beside a numpy reference for each."""
