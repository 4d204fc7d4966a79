"""What helps to decide before a run and between runs: advice, plans, the explorer, many runs, a first project."""
