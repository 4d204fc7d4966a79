"""`posttrain dash`: the runs below a folder, in a browser of the same machine.

    runs.py     which runs there are and how they stand, read anew whenever somebody looks
    pages.py    what is shown: all runs, several on the same plots, what was sampled in a step
    server.py   who may look: this machine alone, with the token that was printed, and nothing but reading

Nothing here writes into a run folder or talks to a run: training does not notice whether somebody looks.
"""
