"""Which part of a completion counts as the program."""

import pytest

from posttrain.verify.programs.program import find_program

ONE, TWO = "def f(n):\n    return 1\n", "def f(n):\n    return 2\n"


def block(source: str, language: str = "python") -> str:
    return f"```{language}\n{source}```\n"


@pytest.mark.parametrize(
    ("completion", "source"),
    [
        (block(ONE), ONE),
        ("Here it is:\n" + block(ONE) + "It returns 1.", ONE),
        (block(ONE) + "or better\n" + block(TWO), TWO),
        (block(TWO) + "For example:\n" + block("print(f(3))\n"), TWO),
        (block(ONE) + "This prints\n" + block("1\n", "text"), ONE),
        (block(ONE) + "Run it:\n" + block("python f.py\n", "bash"), ONE),
        ("~~~py\n" + ONE + "~~~\n", ONE),
        ("Here it is: " + block(ONE), ONE),
        ("Not ``` here.\n" + block(ONE), ONE),
        ("````python\nx = '''\n```\n'''\n" + ONE + "````", "x = '''\n```\n'''\n" + ONE),
        ("1. First:\n   ```python\n   def f(n):\n       return 1\n   ```", ONE),
        ("```python\n" + ONE, ONE),
        (ONE, ONE),
        ("<think>\n" + block(ONE) + "</think>\n" + block(TWO), TWO),
        ([{"role": "user", "content": block(ONE)}, {"role": "assistant", "content": block(TWO)}], TWO),
    ],
)
def test_the_last_block_that_defines_the_function_counts(completion, source):
    assert find_program(completion, function="f").source == source


def test_without_a_function_the_last_python_block_counts():
    assert find_program(block("print(1)\n") + block("print(2)\n")).source == "print(2)\n"


@pytest.mark.parametrize(
    ("completion", "truncated", "reason"),
    [
        ("", False, "no_answer"),
        ("I do not know.", False, "no_answer"),
        ("42", False, "no_answer"),
        (block("1 2\n", "text"), False, "no_answer"),
        ("<think>" + block(ONE), False, "no_answer"),
        ("<think>" + block(ONE), True, "truncated"),
        ("Let me see", True, "truncated"),
        (block(ONE) + "```python\ndef f(n):", True, "truncated"),
        (block(ONE) + "and so", True, ""),
        (block("#" * 200_000 + "\n"), False, "too_large"),
        (None, False, "no_answer"),
        ([], False, "no_answer"),
    ],
)
def test_why_there_is_no_program(completion, truncated, reason):
    assert find_program(completion, truncated=truncated).reason == reason


def test_a_block_that_is_no_python_is_a_program_that_fails():
    assert find_program(block("def f(:\n")).source == "def f(:\n"


PROMPT = (
    'from typing import List\n\n\ndef helper(n):\n    return n\n\n\ndef f(n: int) -> List[int]:\n    """Say n."""\n'
)


def ran(source: str):
    """The function that a program defines; these sources are our own."""
    names: dict = {}
    exec(source, names)
    return names["f"]


@pytest.mark.parametrize(
    "completion",
    [
        "    return [helper(n)]\n",
        "\n    return [helper(n)]\n",
        "    return [helper(n)]\n\n\nprint(f(1)\n",
        "    return [helper(n)]\n\ndef g(:\n",
        block("    return [helper(n)]\n"),
        block("return [helper(n)]\n"),
        block("def f(n: int) -> List[int]:\n    return [helper(n)]\n"),
        block(PROMPT + "    return [helper(n)]\n"),
        "Sure:\n" + block(PROMPT + "    return [helper(n)]\n") + "Done.",
    ],
)
def test_a_completion_continues_its_prompt_or_writes_the_function_anew(completion):
    found = find_program(completion, prompt=PROMPT, function="f")
    assert ran(found.source)(3) == [3]


def test_what_does_not_continue_the_prompt_is_no_answer():
    assert find_program("I would say 3.", prompt=PROMPT, function="f").reason == "no_answer"
