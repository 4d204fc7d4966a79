"""Compares algorithms or configs on one task with equal budgets: which is better, and is the evidence sufficient?"""
