"""Tools for decisions before and between runs: advice, plans, the explorer, experiments, a first project."""
