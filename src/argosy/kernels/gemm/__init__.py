"""Matrix products of quantised weights with a step's activations.

An item of a gemm op is a panel of 16 output rows for all tokens of the step. The bits of a result do not depend on how
many tokens there are, nor on how panels are dealt to threads.
"""
