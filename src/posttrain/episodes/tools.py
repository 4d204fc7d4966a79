"""Tools: functions that a policy may call, and the built-in tools.

A tool is a Python function with type hints, and with a docstring that says what the tool does and what its arguments
are (`Args:`). transformers' `get_json_schema` reads both. Its return value is the result, as text or as JSON.
"""

from __future__ import annotations

import ast
import decimal
import json
import math
import operator
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from posttrain.errors import ConfigError
from posttrain.rewards.load import Target, load, resolve, suggestion

if TYPE_CHECKING:
    from posttrain.data.prompts import Renderer
    from posttrain.types import Completion

BUILTINS = ("calculator", "python", "search:FOLDER")
"""Names of the built-in tools: arithmetic; a program in the sandbox; full-text search."""
_READY = "posttrain.episodes.ready"
UNKNOWN = "unknown"
"""Replaces the name of a tool that does not exist: a name that a model makes up is not shown to anybody."""
ENOUGH_CALLS = 8
"""Number of failed calls from which a tool is reported if no call succeeded. Fewer may be mistakes of the model."""
MOST_EXPRESSION, MOST_DIGITS = 200, 400
"""Maximum characters of an expression, and maximum digits of a power and of a number's exponent."""
PRECISION = 50
"""Digits with which a rounded power is worked out; a result has 17 of them."""


@dataclass(frozen=True, kw_only=True)
class Tool(Target):
    """Where a tool is defined; with `settings`, where the function that makes the tool is defined."""

    settings: Mapping[str, Any] | None = None

    def load(self) -> Callable[..., Any]:
        """Return the function. ConfigError if it cannot be imported or made."""
        found = load(self)
        return found if self.settings is None else found(**self.settings)


class Calls(NamedTuple):
    """What became of the calls of one tool."""

    made: int
    failed: int
    result: str
    """The first line of the first result."""


def calls_of(completions: Iterable[Completion]) -> dict[str, Calls]:
    """Return the calls of each tool in trajectories whose environment did not fail."""
    episodes = [one.episode for one in completions if one.episode is not None and not one.episode.failure]
    made = Counter(name for episode in episodes for name in episode.calls)
    failed = Counter(name for episode in episodes for name in episode.errors)
    results: dict[str, str] = {}
    for message in chain.from_iterable(episode.messages for episode in episodes):
        if message.get("name") in made:
            results.setdefault(message["name"], str(message["content"]).partition("\n")[0][:200])
    return {name: Calls(count, failed[name], results.get(name, "")) for name, count in made.items()}


def find_tool(text: str, folder: Path | None = None) -> Tool:
    """Return the tool named `path/to/file.py:function` or `package.module.function`, or a built-in one by its name."""
    if text == "calculator":
        return Tool(module=__name__, name=text)
    if text == "python":
        return Tool(module=_READY, name="python_tool", settings={})
    name, _, place = text.partition(":")
    if name == "search":
        return Tool(module=_READY, name="search_tool", settings={"folder": str(_folder(place, folder))})
    if "." not in text:
        raise ConfigError(
            given=f"tools: {text}{suggestion(text, BUILTINS)}",
            allowed=f'"path/to/file.py:function", "package.module.function", or {", ".join(BUILTINS)}',
            fix="Name the file and the function.",
        )
    return Tool(**vars(resolve(text, folder)))


def _folder(place: str, beside: Path | None) -> Path:
    for root in (Path.cwd(), *([beside] if beside else [])):
        if place and (root / place).is_dir():
            return (root / place).resolve()
    raise ConfigError(
        given=f"tools: search:{place}, but there is no such folder",
        allowed="search:FOLDER, a folder with texts",
        fix="Name the folder relative to the working directory, or by its whole path.",
    )


def by_name(tools: Sequence[Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """Return the tools by the names of their functions. ConfigError if one has no name, or two have the same."""
    found = dict[str, Callable[..., Any]]()
    for tool in tools:
        name = getattr(tool, "__name__", None)
        if name is None:
            kind = type(tool).__name__
            raise _not_described(kind, "it is an object without a name, and not a function")
        if name in found:
            raise ConfigError(
                given=f"two tools are named {name}",
                allowed="each name once: the name of a tool is that of its function",
                fix=f"List {name} once in tools, or rename one of the functions. Search has one folder for all texts. "
                "If a decorator made the functions, let it use functools.wraps.",
            )
        found[name] = tool
    return found


def _not_described(name: str, problem: object) -> ConfigError:
    return ConfigError(
        given=f"the tool {name} cannot be described to the model: {problem}",
        allowed="a function with type hints and a docstring with a line for each parameter under Args:",
        fix='Write def look(place: str) -> str: """Look somewhere.\\n\\nArgs:\\n    place: Where to look.\\n"""',
    )


def schema_of(function: Callable[..., Any], name: str) -> dict[str, Any]:
    """Return the JSON schema of a tool. ConfigError if its signature or docstring is incomplete."""
    from transformers.utils import chat_template_utils  # slow: no trajectory should wait for it

    try:
        with _without_importing_torch(chat_template_utils):
            return chat_template_utils.get_json_schema(function)
    except Exception as error:
        raise _not_described(name, error) from None


@contextmanager
def _without_importing_torch(module: Any) -> Iterator[None]:
    """Keep transformers' module for schemas from importing torch, which takes a second, to compare type hints with
    tensors. As long as this process has not imported torch, no type hint is a tensor."""
    available = getattr(module, "is_torch_available", None)
    if available is None or "torch" in sys.modules:
        yield
        return
    module.is_torch_available = lambda: False
    try:
        yield
    finally:
        module.is_torch_available = available


def require_tools_in_prompt(renderer: Renderer, schemas: Sequence[Mapping[str, Any]]) -> None:
    """Raise ConfigError if the chat template leaves a tool out of the prompt: the model would not know about it."""
    asked = renderer.render([{"role": "user", "content": "?"}], add_generation_prompt=True, tools=schemas)
    left_out = [one["function"]["name"] for one in schemas if one["function"]["name"] not in asked]
    if left_out:
        raise ConfigError(
            given=f"the chat template leaves the tool {left_out[0]} out of the prompt: the model would not know "
            "about it",
            allowed="a chat template that writes tools",
            fix="Name the template of a model that calls tools in model.chat_template.",
        )


def as_text(value: Any, most: int) -> str:
    """Return the result of a tool as text of at most `most` characters that every encoding can write.

    >>> as_text({"a": 1}, 100), as_text(b"\\xff\\x00", 100), as_text("x" * 9, 4)
    ('{"a": 1}', '\\ufffd', 'xxxx [cut: 4 of 9 characters]')
    """
    if isinstance(value, bytes | bytearray):
        value = bytes(value).decode("utf-8", "replace")
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = text.encode("utf-8", "replace").decode("utf-8").replace("\0", "")
    return text if len(text) <= most else f"{text[:most]} [cut: {most} of {len(text)} characters]"


# --- the calculator ---------------------------------------------------------------------------------------------------

_OPERATIONS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {"abs": abs, "round": round, "min": min, "max": max}


class _Value(NamedTuple):
    """A number, and whether it is exactly what the expression says."""

    number: Fraction
    exact: bool = True


def calculator(expression: str) -> str:
    """Work out an arithmetic expression, exactly where that is possible.

    Args:
        expression: Numbers with + - * / // % ** and parentheses; also sqrt, abs, round, min and max.

    Returns:
        The value.
    """
    if len(expression) > MOST_EXPRESSION:
        raise ValueError(f"the expression has {len(expression)} characters; the limit is {MOST_EXPRESSION}")
    text = expression.strip().replace("^", "**").replace("×", "*").replace("÷", "/")
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError:
        raise ValueError(f"{expression!r} is not an arithmetic expression") from None
    return _written(_value(tree.body, text))


def _value(node: ast.expr, text: str) -> _Value:
    """Return the value of a node of the expression `text`."""
    match node:
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int() as number):
            return _Value(Fraction(number))
        case ast.Constant(value=float()):
            return _Value(_decimal(ast.get_source_segment(text, node) or ""))
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            value = _value(operand, text)
            return value._replace(number=-value.number) if isinstance(sign, ast.USub) else value
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in (*_OPERATIONS, ast.Pow):
            return _operate(sign, _value(left, text), _value(right, text))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in (*_FUNCTIONS, "sqrt"):
            values = [_value(argument, text) for argument in arguments]
            if name == "sqrt":
                if len(values) != 1:
                    raise ValueError(f"sqrt takes one number, not {len(values)}")
                return _power(values[0], _Value(Fraction(1, 2)))
            found = _FUNCTIONS[name](*(value.number for value in values))
            return _Value(Fraction(found), all(value.exact for value in values) and not isinstance(found, float))
    raise ValueError(f"{ast.unparse(node)!r} is not arithmetic")


def _decimal(written: str) -> Fraction:
    """Return the number that is written with a point or an exponent, with all of its digits."""
    written = written.lower().replace("_", "")
    exponent = written.partition("e")[2]
    if abs(int(exponent or 0)) > MOST_DIGITS:
        raise ValueError(f"{written} has more than {MOST_DIGITS} digits")
    return Fraction(written)


def _operate(sign: ast.operator, left: _Value, right: _Value) -> _Value:
    if isinstance(sign, ast.Pow):
        return _power(left, right)
    return _Value(Fraction(_OPERATIONS[type(sign)](left.number, right.number)), left.exact and right.exact)


def _power(left: _Value, right: _Value) -> _Value:
    """Return a power: rounded if the exponent is a fraction, or if the exact power is too long.

    An error of the base grows with the exponent, so the base has as many digits more as the exponent has."""
    base, exponent = left.number, right.number
    digits = abs(exponent) * Fraction(math.log10(max(abs(base.numerator), base.denominator)))
    if exponent.denominator == 1 and digits <= MOST_DIGITS:
        return _Value(Fraction(base**exponent), left.exact and right.exact)
    with decimal.localcontext(decimal.Context(prec=PRECISION + len(str(exponent.numerator)))):
        try:
            power = (Decimal(base.numerator) / base.denominator) ** (Decimal(exponent.numerator) / exponent.denominator)
        except decimal.InvalidOperation:
            raise ValueError(f"({base})**({exponent}) is not a real number") from None
        except (decimal.Overflow, decimal.Underflow):
            power = Decimal(0)
    if power.is_infinite():
        raise ZeroDivisionError(f"0**({exponent})")
    if (base and not power) or abs(power.adjusted()) > MOST_DIGITS:
        raise ValueError(f"({base})**({exponent}) has more than {MOST_DIGITS} digits")
    return _Value(Fraction(power), exact=False)


def _written(value: _Value) -> str:
    """Write an exact integer with all of its digits, and another number with those of a float."""
    number = value.number
    if number.denominator == 1 and (value.exact or abs(number) < 2**sys.float_info.mant_dig):
        return str(number.numerator)
    try:
        near = float(number)
    except OverflowError:
        near = 0.0
    return repr(near) if near else f"{Decimal(number.numerator) / number.denominator:.16e}"  # beyond floats
