"""`posttrain dash`: the runs below a folder, in a browser of the same machine.

    runs.py     the list of runs and the state of each, read again for every request
    pages.py    the pages: all runs, several runs on the same plots, the samples of a step
    server.py   access control: only this machine, only with the printed token, and read-only

Nothing here writes into a run folder or talks to a run, so the dashboard cannot affect training.
"""
