"""The rewards that worked examples are computed on."""

from tests.worked_examples import rewards_PG

__all__ = ["rewards_PG"]
