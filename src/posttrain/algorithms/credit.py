"""Credit for turns: each turn of a trajectory is one action, and its return sums the rewards of this and later turns.

    r_k = token rewards of turn k; the last turn also gets the reward of the whole completion
    G_k = r_k + discount * G_k+1

An algorithm needs no code for turns: it gets a view of its experience in which turns are tokens or completions.

**Turns as tokens**, for algorithms that read token rewards: a turn is one token, with the sum of its
log-probabilities and the value before its first token. Returns, lambda-returns and whitening then run over turns, as
in turn-PPO (arXiv:2512.17008):

    delta_k = r_k + discount V_k+1 - V_k        A_k = delta_k + discount gae_lambda A_k+1        R_k = A_k + V_k

**Turns as completions**, for algorithms that compare the completions of a prompt: turn k of each trajectory is a
completion with the reward G_k, and the trajectories that have a turn k form a group. These are the normalised returns
of Group Turn Policy Optimization (GTPO, arXiv:2511.14846). A turn that no other trajectory of the group has is
compared with their last turns. A baseline that depends on the other trajectories alone leaves the gradient of a
leave-one-out estimator unbiased (Williams 1992).

All tokens of a turn get the advantage of the turn.
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
    """The assignment of the rewards of a completion to its parts."""

    def to_batch(self, algorithm: Algorithm, experience: Experience, state: Any = None) -> Batch:
        """Return the result of `algorithm.to_batch` under this view of the experience."""
        ...


def credit_of(name: str, discount: float = 1.0) -> Credit:
    """Return the credit for a value of `environment.credit`. Token rewards are part of the experience and need no
    view."""
    return ByTurn(discount=discount) if name == "turn" else Whole()


@dataclass(frozen=True, kw_only=True)
class Whole:
    """Implements `Credit`: the algorithm reads the experience unchanged."""

    def to_batch(self, algorithm: Algorithm, experience: Experience, state: Any = None) -> Batch:
        return algorithm.to_batch(experience, state)


@dataclass(frozen=True, kw_only=True)
class ByTurn:
    """Implements `Credit`: each turn has its own return."""

    discount: float = 1.0
    """Discount factor per turn on the rewards of later turns."""

    def to_batch(self, algorithm: Algorithm, experience: Experience, state: Any = None) -> Batch:
        """Return the inputs of the loss. Raises ConfigError for an algorithm that cannot credit turns."""
        if (error := no_turns_for(algorithm)) is not None:
            raise error
        turns = Turns.of(experience, self.discount)
        batch = Batch.from_experience(experience)
        if not algorithm.reads_token_rewards:
            return turns.of_completions(batch, algorithm.to_batch(turns.as_completions(), state))
        if self.discount != 1:
            algorithm = replace(algorithm, gamma=self.discount)  # pyright: ignore[reportCallIssue]
        return turns.of_tokens(batch, algorithm.to_batch(turns.as_tokens(), state))


def _kl_of_tokens(algorithm: PolicyGradient) -> str:
    """Return the estimator of the KL in the rewards of tokens; k1 if there is no such KL, or if there is no choice."""
    if not (algorithm.reads_token_rewards and algorithm.kl_in_reward and "reference" in algorithm.needs):
        return "k1"
    chosen = getattr(algorithm, "values", {}).get("kl_estimator")
    return chosen or getattr(algorithm, "kl_estimator", None) or "k1"


def no_turns_for(algorithm: Algorithm) -> ConfigError | None:
    """Return the reason why turns cannot have their own advantages under this algorithm; None if they can."""
    others = "grpo, rloo, dapo, ppo or reinforce_plus_plus, for example"

    def refused(why: str, allowed: str = others, fix: str = "") -> ConfigError:
        fix = fix or "Set environment.credit = trajectory, or choose another algorithm."
        return ConfigError(given=f"credit by turn, but {algorithm.key} {why}", allowed=allowed, fix=fix)

    if not isinstance(algorithm, PolicyGradient) or not algorithm.learns_from_rewards:
        return refused("has no advantages that come from rewards")
    if not algorithm.reads_token_advantages:
        return refused("as configured has one advantage for a whole completion")
    if (gamma := getattr(algorithm, "gamma", None)) not in (None, 1):
        fix = "Leave gamma out; environment.turn_discount is the discount from turn to turn."
        return refused(f"has a gamma of {gamma:g} per token", "gamma = 1", fix)
    if unknown := algorithm.needs & {"squared_probs", "reward_components"}:
        return refused(f"needs inputs that turns do not have: {', '.join(sorted(unknown))}")
    if algorithm.reads_token_rewards and algorithm.looks_at_lengths:
        return refused("penalises completions by their length in tokens, but a turn counts as one token")
    if (estimator := _kl_of_tokens(algorithm)) != "k1":
        return refused(
            f"has the KL {estimator} of each token in its reward, but a turn counts as one token",
            "kl_estimator = k1, whose sum over the tokens of a turn is that of the turn, or kl_coef = 0",
            "Set kl_estimator = k1.",
        )
    if algorithm.correct_from is not None:
        return refused("distinguishes correct answers, but a turn is not an answer")
    if not algorithm.reads_token_rewards and algorithm.kl_in_reward and "reference" in algorithm.needs:
        return refused(
            "has a KL in the reward of the completion, which is not known turn by turn",
            "kl_coef = 0, or a KL in the loss",
            "Set kl_coef = 0.",
        )
    return None
