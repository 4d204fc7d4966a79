"""Time of a verdict: the math verifiers on strings that never repeat.

    python benchmarks/verifiers.py        print the table of docs/math.md

Every completion is a different text, because the parsers of formulas cache their results. The rows for surds and
polynomials time the fast path in the trainer's process; anything that takes 5 ms there is left to a worker.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from typing import Any

from posttrain.verify.mathematics.choices import multiple_choice
from posttrain.verify.mathematics.countdown import countdown
from posttrain.verify.mathematics.presets import aime, gsm8k, in_time, math, numeric

COUNT = 3000
WORDS = "She buys some of them and sells the others to her friends at the market, so that a few are left. "


def main() -> None:
    chosen = random.Random(0)
    numbers = [str(chosen.randint(10, 10**9)) for _ in range(COUNT)]
    fractions = [(chosen.randint(1, 10**6), chosen.randint(1, 10**6)) for _ in range(COUNT)]
    roots = [(chosen.randint(2, 999), chosen.randint(2, 999)) for _ in range(COUNT)]
    small = [chosen.randint(0, 999) for _ in range(COUNT)]
    table: list[tuple[str, Callable[..., Any], list[tuple[Any, ...]]]] = [
        ("`math`, boxed integer", math, [(f"\\boxed{{{n}}}", n) for n in numbers]),
        ("`math`, boxed integer, another gold", math, [(f"\\boxed{{{n}}}", n + "1") for n in numbers]),
        ("`math`, a solution of 1,000 characters", math, [(WORDS * 10 + f"So \\boxed{{{n}}}.", n) for n in numbers]),
        ("`math`, fractions", math, [(f"$\\boxed{{\\frac{{{a}}}{{{b}}}}}$", f"{a}/{b}") for a, b in fractions]),
        (
            "`math`, surds",
            in_time(math),
            [(f"\\boxed{{{a}\\sqrt{{{b}}}}}", f"\\sqrt{{{a * a * b}}}") for a, b in roots],
        ),
        (
            "`math`, polynomials",
            in_time(math),
            [(f"\\boxed{{(x+{a})({b}-y)}}", f"{b}x-xy+{a * b}-{a}y") for a, b in roots],
        ),
        ("`numeric`, in a sentence", numeric, [(f"The answer is {n} dollars.", n) for n in numbers]),
        ("`gsm8k`, a solution of 1,000 characters", gsm8k, [(WORDS * 10 + f"\n#### {n}", n) for n in numbers]),
        ("`aime`", aime, [(f"{i} gives \\boxed{{{n:03d}}}", n) for i, n in enumerate(small)]),
        ("`multiple_choice`", multiple_choice, [(f"{n}: the answer is (C).", "C") for n in numbers]),
        ("`countdown`", countdown, [(f"<answer>{a} + {b} * 2</answer>", a + 2 * b, [a, b, 2]) for a, b in roots]),
    ]
    print("| verdict | median | 95% | slowest |\n|---|---|---|---|")
    for title, verifier, calls in table:
        seconds = sorted(_seconds(verifier, call) for call in calls)
        median, late = statistics.median(seconds), seconds[int(0.95 * len(seconds))]
        print(f"| {title} | {median * 1e6:.0f} µs | {late * 1e6:.0f} µs | {seconds[-1] * 1e3:.1f} ms |")


def _seconds(verifier: Callable[..., Any], call: tuple[Any, ...]) -> float:
    start = time.perf_counter()
    verifier(*call)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
