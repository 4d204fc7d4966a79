"""The code in the sandbox around a program. It makes one call and reports the result, and judges nothing.

`plain.py` and this file are sent into the sandbox as one program. The task follows as a message:

    program       the source under test, which gets its own module
    setup         statements of the test, in the program's namespace
    expression    a call, in the program's namespace; if it is empty, instead:
    target, arguments, keywords      a name, a method of `Solution` or an expression, and packed values
    nonce         returned with the answer

The answer is one frame: {"nonce", "value"} with the packed value, or {"nonce", "error", "text"} with the exception.
A program can forge that frame but gains nothing: it can only choose the value, and does not know the right one.
"""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Callable
from typing import Any

from posttrain.verify.programs.plain import dump, load, pack, unpack

PROGRAM = "<program>"
LEETCODE = """
import bisect, collections, functools, heapq, itertools, math, random, re, string
from bisect import *; from collections import *; from functools import *; from heapq import *; from itertools import *
from math import gcd, inf; from typing import *
"""
"""Imports that LeetCode provides, and that programs with a class `Solution` rely on."""


def answer_call(task: dict[str, Any]) -> bytes:
    """Carry out a task and return the frame with its result."""
    try:
        answer = {"value": pack(_evaluate(task))}
    except BaseException as error:
        answer = _described(error)
    return dump({"nonce": task["nonce"], **answer})


def answer_script(task: dict[str, Any], ask: Callable[[bytes], bytes]) -> bytes:
    """Run assertions. `ask` sends each of their calls to the program's process and returns the answer."""
    module = _module("checker")
    names = module.__dict__
    try:
        exec(compile(task["helpers"], "<helpers>", "exec"), names)
        for name, target in task["functions"].items():
            names[name] = _stub(target, ask)
        exec(compile(task["script"], "<test>", "exec"), names)
        answer: dict[str, Any] = {"passed": True}
    except BaseException as error:
        answer = {"passed": False, **_described(error)}
    return dump(answer)


class ProgramError(Exception):
    """The program raised an exception that is not built in."""


RAISED: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        *(ArithmeticError, AttributeError, EOFError, IndexError, KeyError, LookupError, NameError),
        *(NotImplementedError, OSError, OverflowError, RecursionError, RuntimeError, TypeError, ValueError),
        *(FileNotFoundError, MemoryError, ZeroDivisionError),
    )
}
"""The exceptions that a test may expect, by name. StopIteration is not among them: in a function that is mapped over
the cases, it would end the loop and the test. Nor is AssertionError, which only the test raises."""


def _stub(target: str, ask: Callable[[bytes], bytes]) -> Callable[..., Any]:
    def function(*arguments: Any, **keywords: Any) -> Any:
        call = {"target": target, "arguments": pack(list(arguments)), "keywords": pack(keywords)}
        answer = load(ask(dump({"call": call})))
        if "error" in answer:
            raise RAISED.get(answer["error"], ProgramError)(answer["text"])
        return unpack(answer["value"])

    return function


def _evaluate(task: dict[str, Any]) -> Any:
    module = _module("program")
    names = module.__dict__
    if "class Solution" in task["program"]:
        exec(LEETCODE, names)
    exec(compile(task["program"], PROGRAM, "exec"), names)
    if task["setup"]:
        exec(compile(task["setup"], "<setup>", "exec"), names)
    if task["expression"]:
        return eval(task["expression"], names)
    target = _find(task["target"], names)
    return target(*unpack(task["arguments"]), **unpack(task["keywords"]))


def _find(target: str, names: dict[str, Any]) -> Any:
    """A function of the program, or a method of its class `Solution` if there is no such function."""
    if target not in names and hasattr(names.get("Solution"), target):
        return getattr(names["Solution"](), target)
    return eval(target, names)


def _module(name: str) -> types.ModuleType:
    """An empty module that can be imported by name, because dataclasses and pickle look up their module."""
    module = types.ModuleType(name)
    module.__dict__["__builtins__"] = builtins
    sys.modules[name] = module
    return module


def _described(error: BaseException) -> dict[str, Any]:
    try:
        text = str(error)[:200]
    except BaseException:
        text = ""
    return {"error": type(error).__name__[:60], "text": text}
