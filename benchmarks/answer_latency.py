"""Time to read an answer and compare it with the gold answer, on strings that were never seen before.

    python benchmarks/answer_latency.py

Two things are timed separately: `parse` + `same` on the answer alone, and the whole verifier on a completion. Times are
CPU times of this process, so that other work on the machine does not count.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from posttrain.verify.mathematics.compare import same
from posttrain.verify.mathematics.guard import Unreadable
from posttrain.verify.mathematics.options import Options
from posttrain.verify.mathematics.parse import parse
from posttrain.verify.mathematics.presets import math

ROUNDS = 3_000
KINDS: dict[str, tuple[str, Callable[[int], str]]] = {
    "integer": ("18", lambda i: str(i)),
    "thousands": ("1800", lambda i: f"{1 + i % 900},{100 + i % 900}"),
    "decimal": ("18.25", lambda i: f"{i}.25"),
    "fraction": (r"\frac{1}{2}", lambda i: rf"\frac{{{i}}}{{{i + 1}}}"),
    "assignment": ("18", lambda i: f"x = {i}"),
    "surd": (r"2\sqrt{3}", lambda i: rf"{i}\sqrt{{3}}"),
    "polynomial": ("x^2+2x+1", lambda i: f"(x+{i})^2"),
    "point": ("(1,2)", lambda i: f"({i},{i + 1})"),
    "interval": ("[0,1)", lambda i: rf"0 \le x < {i + 1}"),
}


def microseconds(judge: Callable[[str], object], answers: list[str]) -> tuple[float, float]:
    """The median and the 99th percentile of the times, in microseconds."""
    taken = []
    for answer in answers:
        start = time.process_time_ns()
        judge(answer)
        taken.append((time.process_time_ns() - start) / 1_000)
    return statistics.median(taken), statistics.quantiles(taken, n=100)[98]


def main() -> None:
    options = Options()
    print("answer       parse + same: median   p99   whole verdict: median   p99   (microseconds)")
    for kind, (gold, answer) in KINDS.items():
        value = parse(gold, options, gold=True)

        def compare(text: str, value=value) -> object:
            try:
                return same(value, parse(text, options), options)
            except Unreadable as unreadable:
                return unreadable.reason

        def verdict(text: str, gold: str = gold) -> object:
            return math(f"We add the two numbers, and so the result is $\\boxed{{{text}}}$.", gold)

        alone = microseconds(compare, [answer(i) for i in range(ROUNDS)])
        whole = microseconds(verdict, [answer(ROUNDS + i) for i in range(ROUNDS)])
        print(f"{kind:12s} {alone[0]:20.1f} {alone[1]:5.0f} {whole[0]:23.1f} {whole[1]:5.0f}")


if __name__ == "__main__":
    main()
