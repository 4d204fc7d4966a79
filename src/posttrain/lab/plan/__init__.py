"""Predicts what a step needs: memory per phase and role, arithmetic, time, money and disk."""
