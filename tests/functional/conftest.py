"""Fixtures for the worked examples."""

from tests.worked_examples import assert_ragged, lengths_PG, rewards_PG, t

__all__ = ["assert_ragged", "lengths_PG", "rewards_PG", "t"]
