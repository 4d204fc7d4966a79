"""The rewards that the worked examples use."""

from tests.worked_examples import rewards_PG

__all__ = ["rewards_PG"]
