"""Several algorithms or configs on one task with equal budget: which is better, and can that be said at all?"""
