"""A misspelt option never chooses another formula: every option that is chosen by name refuses other names."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args, get_origin

import pytest
import torch
from tests.catalogue import catalogue

import posttrain.functional
from posttrain.functional.baselines import whiten
from posttrain.functional.corrections import ESTIMATES, OVER, estimate_score
from posttrain.functional.estimators import majority_at_k
from posttrain.functional.kl import KL_ESTIMATOR_NAMES, kl_estimate
from posttrain.functional.preferences import divergence_score
from posttrain.functional.step_scores import aggregate
from posttrain.functional.trust_regions import divergence, divergence_mask, moved_too_far

X, Y = torch.tensor([[-0.5, -1.0], [-2.0, -0.1]]), torch.tensor([[-0.6, -0.7], [-1.0, -0.2]])
MASK = torch.ones(2, 2, dtype=torch.bool)

CALLS: dict[tuple[Callable[..., Any], str], Callable[[Any], Any]] = {
    (aggregate, "how"): lambda how: aggregate(X[0].exp(), how),
    (divergence, "kind"): lambda kind: divergence(X, Y, kind),
    (divergence_mask, "kind"): lambda kind: divergence_mask(X, Y, MASK, 0.1, 0.1, kind),
    (divergence_score, "divergence"): lambda name: divergence_score(X, name),
    (estimate_score, "name"): lambda name: estimate_score(name, X - Y, MASK),
    (kl_estimate, "estimator"): lambda name: kl_estimate(name, X, Y, Y),
    (majority_at_k, "ties"): lambda ties: majority_at_k("AAB", [True, True, False], 2, ties=ties),
    (moved_too_far, "kind"): lambda kind: moved_too_far(X, Y, 0.1, 0.1, kind),
    (whiten, "mean"): lambda mean: whiten(X, MASK, mean=mean),
    (whiten, "over"): lambda over: whiten(X, MASK, over=over),
}
BY_TEXT = {
    (estimate_score, "name"): [f"{over}_{estimate}" for over in OVER for estimate in ESTIMATES],
    (kl_estimate, "estimator"): list(KL_ESTIMATOR_NAMES),
}
"""The names of options that are annotated as any text."""


def options() -> Iterator[tuple[tuple[Callable[..., Any], str], list[str]]]:
    """Yield every option of the package that takes a name, with its names."""
    for found in pkgutil.iter_modules(posttrain.functional.__path__, "posttrain.functional."):
        module = importlib.import_module(found.name)
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ != module.__name__ or name.startswith("_"):
                continue
            for option, parameter in inspect.signature(function).parameters.items():
                if (function, option) in BY_TEXT:
                    yield (function, option), BY_TEXT[function, option]
                elif isinstance(kind := parameter.annotation, str) and kind in vars(module):
                    if get_origin(vars(module)[kind]) is Literal:
                        yield (function, option), list(get_args(vars(module)[kind]))
                else:
                    assert "Literal" not in str(kind), f"give the names of {option} in {function} an alias"


OPTIONS = dict(options())


def test_the_catalogue_has_every_option_that_is_chosen_by_name():
    assert OPTIONS.keys() == CALLS.keys()


@catalogue("option", CALLS, ids=lambda option: f"{option[0].__name__}({option[1]}=)")
def test_an_unknown_name_is_refused_with_the_known_ones(option):
    known, call = OPTIONS[option], CALLS[option]
    for name in known:
        call(name)
    for wrong in (
        "",
        "other",
        None,
        *(name + "s" for name in known),
        *(name.replace("_", "-") + "_" for name in known),
    ):
        with pytest.raises(ValueError, match=f"{option[1]} = .*allowed: .*{known[-1]}"):
            call(wrong)
