"""`check_algorithm`: tests any algorithm for the invariances that posttrain's own algorithms must satisfy."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from posttrain.algorithms import Algorithm, PolicyGradient
from posttrain.errors import ConfigError
from posttrain.testing import declared, on_a_model
from posttrain.testing import invariances as holds
from posttrain.testing.checks import Check, run_checks
from posttrain.testing.steps import ROWS, G, P, Raw, raw_step
from posttrain.types import Experience

SEEDS = 3
"""Number of random steps on which each invariance is tested."""


def check_algorithm(
    algorithm: type[Algorithm] | Algorithm, *, seeds: int = SEEDS, skip: Collection[str] = ()
) -> tuple[str, ...]:
    """Run all checks on an algorithm, and return the names of the checks that passed.

        def test_my_algorithm():
            check_algorithm(MyAlgorithm)
            check_algorithm(MyAlgorithm(kl_coef=0.1))

    A class is tested with its defaults, an instance with its settings. `skip` names checks that do not apply; state the
    reason in your test. Raises `ChecksFailed`, an AssertionError, with every failed check. It takes about a
    second.
    """
    checks = algorithm_checks(algorithm, seeds=seeds)
    if unknown := [name for name in skip if name not in checks]:
        raise ConfigError(given=f"skip = {unknown[0]!r}", allowed=", ".join(checks), fix="Name one of these.")
    return run_checks(_named(algorithm), {name: check for name, check in checks.items() if name not in skip})


def algorithm_checks(algorithm: type[Algorithm] | Algorithm, *, seeds: int = SEEDS) -> dict[str, Check]:
    """Return the checks by name, for `pytest.mark.parametrize`. Each raises AssertionError if it fails."""
    if isinstance(algorithm, type):
        if not issubclass(algorithm, Algorithm):
            raise ConfigError(given=f"{algorithm!r}", allowed="a class derived from posttrain.algorithms.Algorithm")
        algorithm = algorithm()
    checks: dict[str, Check] = {
        "settings are a frozen record": partial(declared.settings_are_a_frozen_record, algorithm),
        "the card is complete": partial(declared.the_card_is_complete, algorithm),
        "each metric has a formula": partial(declared.each_metric_has_a_formula, algorithm),
        "every setting changes something": partial(declared.every_setting_changes_something, algorithm),
    }
    for name, check in _invariances(algorithm).items():
        checks[name] = partial(_on_seeds, check, algorithm, seeds)
    if not algorithm.needs & {"scores", "teacher", "squared_probs"}:
        packing = partial(on_a_model.packing_and_micro_batches_do_not_matter, algorithm)
        checks["packing, shared prompts and micro-batches on a model"] = packing
    return checks


Invariance = Callable[[Any, random.Random], None]
"""Function that tests an invariance on a step. The random generator splits or reorders it."""


def _invariances(algorithm: Algorithm) -> dict[str, Invariance]:
    """Return the invariances that hold for the algorithm's kind of data."""

    def owner(dice: random.Random) -> list[int]:
        return [dice.randrange(4) for _ in range(ROWS)]

    def hidden(raw: Raw, dice: random.Random) -> None:
        holds.what_stands_outside_the_mask_is_never_read(algorithm, raw, float("nan"), float("inf"), 1e30)

    def far(raw: Raw, dice: random.Random) -> None:
        for difference in (100.0, -100.0):
            holds.a_log_ratio_of_100_stays_finite(algorithm, raw, difference)

    def ordered(raw: Raw, dice: random.Random) -> None:
        holds.the_order_of_rows_does_not_matter(algorithm, raw, dice.sample(range(ROWS), ROWS))

    of_any: dict[str, Invariance] = {
        "micro-batches": lambda raw, dice: holds.any_split_sums_to_the_whole(algorithm, raw, owner(dice)),
        "totals of ranks": lambda raw, dice: holds.ranks_count_the_same_denominators(algorithm, raw, owner(dice)),
        "order of rows": ordered,
        "padding": lambda raw, dice: holds.padding_columns_do_not_matter(algorithm, raw, dice.randint(1, 3)),
        "rows that train nothing": lambda raw, _: holds.rows_without_trained_tokens_do_not_matter(algorithm, raw),
        "what the mask hides": hidden,
        "a step without tokens": lambda raw, _: holds.an_all_masked_step_is_zero(algorithm, raw),
        "log-ratios of 100": far,
        "nan is not hidden": lambda raw, _: holds.nan_among_trained_tokens_reaches_the_loss(algorithm, raw),
        "gradient through the outputs alone": lambda raw, _: holds.only_the_outputs_carry_gradient(algorithm, raw),
        "arguments are left alone": lambda raw, _: holds.no_argument_is_changed(algorithm, raw),
        "outputs of another shape": lambda raw, _: holds.outputs_of_another_shape_are_refused(algorithm, raw),
    }
    return of_any | (_of_sampled(algorithm) if isinstance(algorithm, PolicyGradient) else {})


def _of_sampled(algorithm: PolicyGradient) -> dict[str, Invariance]:
    """Return the invariances of algorithms that learn from rewards of sampled completions."""

    def following(raw: Experience, dice: random.Random) -> None:
        orders = dice.sample(range(P), P), dice.sample(range(G), G)
        holds.advantages_follow_their_completions(algorithm, raw, *orders)

    def at_start(raw: Experience, dice: random.Random) -> None:
        holds.on_policy_the_old_log_probabilities_may_be_left_out(algorithm, raw)

    return {
        "advantages follow their completions": following,
        "advantages of tokens": lambda raw, _: holds.a_token_is_moved_by_its_own_advantage_alone(algorithm, raw),
        "nothing scored": lambda raw, _: holds.nothing_scored_is_zero(algorithm, raw),
        "old log-probabilities on-policy": at_start,
    }


def _on_seeds(check: Invariance, algorithm: Algorithm, seeds: int) -> None:
    for seed in range(seeds):
        check(raw_step(algorithm, seed), random.Random(seed))


def _named(algorithm: type[Algorithm] | Algorithm) -> str:
    return getattr(algorithm, "key", "") or repr(algorithm)
