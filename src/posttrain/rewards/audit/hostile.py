"""Completions that cost a careless reward minutes: each is cheap to write and dear to read."""

from __future__ import annotations

_MATRIX = "\\\\".join("&".join(f"a_{{{row}{column}}}" for column in range(9)) for row in range(9))

HOSTILE: dict[str, str] = {
    "a power tower": r"The answer is \boxed{9^{9^{9^{9}}}}",
    "a power tower in Python": "The answer is 9**9**9**9",
    "a large power": r"\boxed{7^{30000000}}",
    "a factorial": r"\boxed{99999999!}",
    "a sum without end": r"\boxed{\sum_{k=1}^{10^{12}} \frac{1}{k^k}}",
    "a modulus of a large power": r"\boxed{3^{10^{10}} \mod 11}",
    "a symbolic determinant": rf"\boxed{{\det\begin{{pmatrix}}{_MATRIX}\end{{pmatrix}}}}",
    "nested parentheses": "\\boxed{" + "(" * 400 + "7" + ")" * 400 + "}",
    "nested parentheses as text": "#### " + "(" * 3000 + "7" + ")" * 3000 + "x",
    "parentheses that never close": "#### " + "(" * 3000 + "7",
    "nested braces": "\\boxed" + "{" * 3000 + "7" + "}" * 3000,
    "boxes that never close": "\\boxed{" * 3000,
    "nested fractions": "\\boxed{" + "\\frac{1}{" * 300 + "7" + "}" * 300 + "}",
    "200,000 digits": "\\boxed{" + "7" * 200_000 + "}",
    "200,000 digits as text": "#### " + "7" * 200_000,
    "dollar signs": "$ " * 20_000,
    "a run of letters": "#### " + "a" * 50_000 + "!",
    "a run of spaces": "The answer is" + " " * 100_000 + "x",
    "line breaks": "\n" * 100_000 + "#### 7x",
    "10,000 boxes": "\\boxed{7}" * 10_000,
    "unclosed tags": "<answer>" * 5_000 + "<think>" * 5_000,
    "nested JSON": "[" * 20_000,
    "1 MB of prose": "so we look at it again and " * 38_000,
    "zero bytes": "\x00" * 1_000 + "#### 7",
    "a lone surrogate": "#### 7\ud800",
}
