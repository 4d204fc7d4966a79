"""The fixtures of rewards: verifiers and tasks are also tested as the rewards of a run."""

from tests.rewards.conftest import built, children, reward_file, score

__all__ = ["built", "children", "reward_file", "score"]
