"""Credit for turns: each turn of a trajectory is one action, and what this turn and later ones earn is its return.

    r_k = rewards of the tokens of turn k, that of the whole completion beside those of its last turn
    G_k = r_k + discount * G_k+1

An algorithm needs to know nothing of turns: it is shown its experience in other words.

**Turns as tokens**, for algorithms that read rewards of tokens: a turn is one token, with the sum of its
log-probabilities and the value before its first token. Returns, lambda-returns and whitening then go from turn to turn,
as in turn-PPO (arXiv:2512.17008):

    delta_k = r_k + discount V_k+1 - V_k        A_k = delta_k + discount gae_lambda A_k+1        R_k = A_k + V_k

**Turns as completions**, for those that compare the completions of a prompt: turn k of each trajectory is a completion
with the reward G_k, and those that have a turn k are a group: the normalised returns of Group Turn Policy Optimization
(GTPO, arXiv:2511.14846). A turn that no other trajectory of the group has is compared with their last turns: any
baseline that depends on the others alone leaves the gradient of a leave-one-out estimator unbiased (Williams 1992).

What comes of it stands on each token of the turn.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

from posttrain.algorithms.algorithm import Algorithm
from posttrain.algorithms.base import PolicyGradient
from posttrain.algorithms.turns import Turns
from posttrain.errors import ConfigError
from posttrain.types import Batch, Experience


class Credit(Protocol):
    """Who earned the rewards of a completion."""

    def to_batch(self, algorithm: Algorithm, experience: Experience, state: Any = None) -> Batch:
        """`algorithm.to_batch` under this view."""
        ...


def credit_of(name: str, discount: float = 1.0) -> Credit:
    """By the name of `environment.credit`; rewards of tokens are part of the experience, which is then read as it
    is."""
    return ByTurn(discount=discount) if name == "turn" else Whole()


@dataclass(frozen=True, kw_only=True)
class Whole:
    """Implements `Credit`: what the algorithm makes of the experience as it is."""

    def to_batch(self, algorithm: Algorithm, experience: Experience, state: Any = None) -> Batch:
        return algorithm.to_batch(experience, state)


@dataclass(frozen=True, kw_only=True)
class ByTurn:
    """Implements `Credit`."""

    discount: float = 1.0
    """Discount on the earnings of a later turn, for each turn in between."""

    def to_batch(self, algorithm: Algorithm, experience: Experience, state: Any = None) -> Batch:
        """The inputs of the loss. Raises ConfigError for an algorithm that cannot credit turns."""
        if (error := no_turns_for(algorithm)) is not None:
            raise error
        turns = Turns.of(experience, self.discount)
        batch = Batch.from_experience(experience)
        if not algorithm.reads_token_rewards:
            return turns.of_completions(batch, algorithm.to_batch(turns.as_completions(), state))
        if self.discount != 1:
            algorithm = replace(algorithm, gamma=self.discount)  # pyright: ignore[reportCallIssue]
        return turns.of_tokens(batch, algorithm.to_batch(turns.as_tokens(), state))


def no_turns_for(algorithm: Algorithm) -> ConfigError | None:
    """Why turns cannot have advantages of their own under this algorithm; None where they can."""
    others = "grpo, rloo, dapo, ppo or reinforce_plus_plus, for example"

    def refused(why: str, allowed: str = others, fix: str = "") -> ConfigError:
        fix = fix or "Set environment.credit = trajectory, or choose another algorithm."
        return ConfigError(given=f"credit by turn, but {algorithm.key} {why}", allowed=allowed, fix=fix)

    if not isinstance(algorithm, PolicyGradient) or not algorithm.learns_from_rewards:
        return refused("has no advantages that come from rewards")
    if not algorithm.reads_token_advantages:
        return refused("as configured has one advantage for all of a completion")
    if (gamma := getattr(algorithm, "gamma", None)) not in (None, 1):
        fix = "Leave gamma out; environment.turn_discount is the discount from turn to turn."
        return refused(f"has a gamma of {gamma:g} per token", "gamma = 1", fix)
    if unknown := algorithm.needs & {"squared_probs", "reward_components"}:
        return refused(f"needs what turns do not have: {', '.join(sorted(unknown))}")
    if algorithm.reads_token_rewards and algorithm.looks_at_lengths:
        return refused("fines completions by their lengths in tokens, and a turn is one step")
    if algorithm.correct_from is not None:
        return refused("asks which answers are correct, and a turn is no answer")
    if not algorithm.reads_token_rewards and algorithm.kl_in_reward and "reference" in algorithm.needs:
        return refused(
            "has a KL in the reward of the completion, which is not known turn by turn",
            "kl_coef = 0, or a KL in the loss",
            "Set kl_coef = 0.",
        )
    return None
