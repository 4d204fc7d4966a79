"""Which part of a completion counts as the program."""

import itertools

import pytest
from tests.catalogue import catalogue

from posttrain.verify.programs.program import find_program

ONE, TWO = "def f(n):\n    return 1\n", "def f(n):\n    return 2\n"


def block(source: str, language: str = "python") -> str:
    return f"```{language}\n{source}```\n"


@catalogue(
    "completion, source",
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


PROGRAM = "print(int(input()) + 1)\n"


@catalogue(
    "example",
    ["Input: 1\nOutput: 2\n", "1\n", "1 2 3\n6\n", "2\n", "yes\n", "3, 4\n", "Sample: (1, 2)\n", "$ python f.py\n",
     "'x'\n", "x\n", "1 + 1\n", "[1, 2]\n", "", ">>> 1\n", "n: 3\n\nanswer: 4\n"],
)  # fmt: skip
@catalogue("language", ["python", "py", "Python3", ""])
def test_an_example_of_input_and_output_is_not_the_program(example, language):
    shown = "Example:\n" + block(example, "")
    assert find_program(block(PROGRAM, language) + shown).source == PROGRAM
    assert find_program(shown + block(PROGRAM, language) + shown * 2).source == PROGRAM


@pytest.mark.parametrize("example", ["x = 1\n", "print(2)\n", "total(3)\n", "Result = 4\n"])
def test_an_example_that_could_be_code_does_not_replace_a_block_fenced_as_python(example):
    assert find_program(block(PROGRAM) + block(example, "")).source == PROGRAM


KINDS = {"python": "print({})\n", "": "print({})\n", "example": "Input: {}\nOutput: 2\n", "text": "print({})\n"}


@catalogue("kinds", list(itertools.product(KINDS, repeat=3)))
def test_one_block_runs_and_its_place_and_fence_choose_it(kinds):
    """What the blocks print, and so which one is right, has no say. All sequences of three."""

    def place(*numbers: int) -> int | None:
        sources = [KINDS[kind].format(number) for kind, number in zip(kinds, numbers, strict=True)]
        fences = ["" if kind == "example" else kind for kind in kinds]
        found = find_program("".join(map(block, sources, fences)))
        return sources.index(found.source) if found.source else None

    expected = [at for kind in ("python", "", "example") for at in (2, 1, 0) if kinds[at] == kind]
    assert {place(*numbers) for numbers in itertools.permutations((1, 2, 3))} == {expected[0] if expected else None}


@catalogue(
    "completion, truncated, reason",
    [
        ("", False, "no_answer"),
        ("I do not know.", False, "no_answer"),
        ("42", False, "no_answer"),
        ("Answer: 42", False, "no_answer"),
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


@catalogue(
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
