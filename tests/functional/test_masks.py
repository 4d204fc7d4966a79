"""Masks: EOS is trained, the tokens after it are not, and masked values are never read."""

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.catalogue import catalogue

from posttrain.functional import masks
from posttrain.functional.masks import last_token, masked, until_eos

EOS = 2


@catalogue(
    "ids, eos_ids, expected",
    [
        ([5, 6, EOS, 7], {EOS}, [1, 1, 1, 0]),
        ([EOS, 5, 6, 7], {EOS}, [1, 0, 0, 0]),
        ([5, 6, 7, 8], {EOS}, [1, 1, 1, 1]),
        ([5, EOS, EOS, EOS], {EOS}, [1, 1, 0, 0]),
        ([5, 9, EOS, 7], {EOS, 9}, [1, 1, 0, 0]),
        ([5, 6, 7, EOS], {EOS}, [1, 1, 1, 1]),
        ([5, EOS, 6, EOS], {EOS}, [1, 1, 0, 0]),
        ([5, 6, 7, 8], set(), [1, 1, 1, 1]),
    ],
    ids=["inside", "first", "none", "pad is eos", "several eos ids", "last", "text after eos", "no eos id"],
)
def test_a_completion_ends_with_its_first_eos(ids: list[int], eos_ids: set[int], expected: list[int]):
    assert until_eos(torch.tensor([ids]), eos_ids).int().tolist() == [expected]


def test_rows_end_independently():
    mask_BT = until_eos(torch.tensor([[EOS, 5, 5], [5, 5, EOS], [5, 5, 5]]), {EOS})
    assert mask_BT.sum(dim=-1).tolist() == [1, 3, 3]


def test_the_last_token_is_the_last_one_that_is_masked_in():
    """This also holds with a gap in the mask, as after tool output. An empty row has no last token."""
    mask_BT = torch.tensor([[1, 0, 1, 0], [0, 1, 1, 1], [0, 0, 0, 0]]).bool()
    assert last_token(mask_BT).int().tolist() == [[0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0]]


@pytest.mark.parametrize("hidden", [float("nan"), float("inf"), -float("inf")])
def test_what_the_mask_hides_is_exactly_zero(hidden: float):
    x_BT = torch.tensor([[1.5, hidden]], dtype=torch.float64, requires_grad=True)
    y_BT = masked(x_BT, torch.tensor([[True, False]]))
    y_BT.sum().backward()
    assert y_BT.tolist() == [[1.5, 0.0]]
    assert x_BT.grad is not None
    assert x_BT.grad.tolist() == [[1.0, 0.0]]


def test_masking_keeps_the_dtype():
    mask = torch.tensor([True, False])
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        assert masked(torch.ones(2, dtype=dtype), mask).dtype == dtype


def with_a_mask() -> dict[str, Callable[..., object]]:
    """Return every function of `functional` that takes a token mask, except the two that create one."""
    found = {}
    for file in sorted(Path(masks.__file__).parent.glob("[!_]*.py")):
        module = importlib.import_module(f"posttrain.functional.{file.stem}")
        for name, function in vars(module).items():
            own = inspect.isfunction(function) and function.__module__ == module.__name__ and not name.startswith("_")
            if own and "mask_BT" in inspect.signature(function).parameters:
                found[f"{file.stem}.{name}"] = function
    return found


@catalogue("name", with_a_mask())
def test_a_mask_of_ones_and_zeros_does_what_a_mask_of_bools_does(name):
    """An integer index selects rows, so an integer mask could silently select the wrong tokens."""
    function = with_a_mask()[name]
    mask_BT = torch.tensor([[1, 1, 0, 1], [0, 0, 1, 1], [1, 0, 0, 0]]).bool()
    x_BT = torch.linspace(-2, 1, 12).reshape(3, 4)
    numbers = {"gamma": 0.9, "lam": 0.8, "high": 0.5, "bound": 0.1, "share": 0.3, "tokens": 5, "sequences": 3}
    numbers |= {"group_size": 3}
    numbers |= {"length": 4, "cov_low": -9.0, "cov_high": 9.0}
    shapes = {"B": x_BT[:, 0], "B1": x_BT[:, :1], "BT": x_BT.flip(0)}
    given: dict[str, object] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in numbers:
            given[parameter.name] = numbers[parameter.name]
        elif parameter.default is inspect.Parameter.empty and parameter.name != "mask_BT":
            given[parameter.name] = shapes.get(parameter.name.rpartition("_")[2], x_BT)
    if "name" in given:
        given["name"] = "max_k3"
    if "candidates_BT" in given:
        given["candidates_BT"] = x_BT > 0
    expected = function(**given, mask_BT=mask_BT)
    for dtype in (torch.float32, torch.int64, torch.uint8):
        assert_same(function(**given, mask_BT=mask_BT.to(dtype)), expected)


def assert_same(actual: object, expected: object) -> None:
    if isinstance(expected, tuple):
        for a, e in zip(actual, expected, strict=True):  # type: ignore[call-overload]
            assert_same(a, e)
    else:
        torch.testing.assert_close(actual, expected)
