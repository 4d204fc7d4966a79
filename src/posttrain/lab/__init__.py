"""Tools for decisions before and between runs: advice, plans, the explorer, many runs, a first project."""
