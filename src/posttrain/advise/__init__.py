"""What can be known before a run is paid for: which algorithm, whether it fits, what it costs. Nothing imports torch.

`cards` holds the facts of every algorithm as data, written from the classes.
"""
