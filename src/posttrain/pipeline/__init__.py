"""Several stages in one file, each measured, each hand-over proven."""
