"""Experiments of several runs that answer one question: `compare` and `sweep`. Each run has its own process."""
