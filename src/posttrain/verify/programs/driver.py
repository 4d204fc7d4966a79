"""The code in the sandbox around a program: it makes one call and reports the result. It judges nothing.

`plain.py` and this file are sent into the sandbox as one program, and the task after it, as a message:

    program       the source under test; its names are a module of their own
    setup         statements of the test, in the program's names
    expression    a call, in the program's names; or empty, and instead of it:
    target, arguments, keywords      a name, a method of `Solution` or an expression, and packed values
    nonce         goes back with the answer

The answer is one frame: {"nonce", "value"} with the packed value, or {"nonce", "error", "text"} with what was raised.
A program can forge that frame, and gains nothing: it can only choose the value, and does not know which one is right.
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
"""What is there before a class `Solution` where such programs come from, and what its first lines take for granted."""


def answer_call(task: dict[str, Any]) -> bytes:
    """The frame that tells what came of a task."""
    try:
        answer = {"value": pack(_evaluate(task))}
    except BaseException as error:
        answer = _described(error)
    return dump({"nonce": task["nonce"], **answer})


def answer_script(task: dict[str, Any], ask: Callable[[bytes], bytes]) -> bytes:
    """Run assertions whose functions are messages: `ask` sends a call to the program's process and gets its answer."""
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
    """The program raised something that is no built-in exception."""


RAISED: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        *(ArithmeticError, AttributeError, EOFError, IndexError, KeyError, LookupError, NameError),
        *(NotImplementedError, OSError, OverflowError, RecursionError, RuntimeError, TypeError, ValueError),
        *(FileNotFoundError, MemoryError, ZeroDivisionError),
    )
}
"""What a test may expect, by name. StopIteration is not among them: from a function that is mapped over the cases, it
would end the loop, and with it the test. Nor is AssertionError, which is for the test to raise."""


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
    """A function of the program; a method of its class `Solution` where there is no such function."""
    if target not in names and hasattr(names.get("Solution"), target):
        return getattr(names["Solution"](), target)
    return eval(target, names)


def _module(name: str) -> types.ModuleType:
    """An empty module that can be imported by its name: dataclasses and pickle look their module up."""
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
