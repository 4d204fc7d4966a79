"""Configuration as text: reads YAML and TOML with the line of every mistake, and writes values that read back the same.

Scalars are read by the rules of YAML 1.2: `1e-6` is a number; `no`, `on`, `0123` and `2026-01-01` are text; `true` and
`false` are the only truth values. A key that is written twice is an error. The last value never wins silently.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

import yaml

from posttrain.errors import ConfigError

SUFFIXES = (".yaml", ".yml", ".toml")
REDACTED = "<redacted>"
SAVED = "# All settings of"
"""The beginning of the first line of a saved configuration."""
COMMENT = "  # "
"""The separator between a value and its comment."""
MAX_BYTES, MAX_LEVELS, MAX_VALUES = 2**18, 64, 20_000
"""Limits of a configuration file. The value of an alias counts every time it is used. A larger file is a mistake or an
attack."""
MAX_INTEGER = 2**64 - 1
MAX_LINES = 2000
"""Number of lines of a TOML file in which the line of a mistake is searched."""
Steps = tuple[str | int, ...]

_INTEGER = r"(?:0|[1-9](?:_?[0-9])*)"
_EXPONENT = r"(?:[eE][-+]?[0-9]+)"
_NUMBER = rf"[-+]?(?:{_INTEGER}\.[0-9]*{_EXPONENT}?|\.[0-9]+{_EXPONENT}?|{_INTEGER}{_EXPONENT})"
_SCALARS = {
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (rf"[-+]?{_INTEGER}", "-+0123456789"),
    "float": (rf"{_NUMBER}|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+.0123456789"),
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
}
"""Tag -> the pattern of its values, and their possible first characters. Every other value is text."""


class _Reader(yaml.SafeLoader):
    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        lines: dict[str, int] = {}
        for key_node, _ in node.value:
            key, line = key_node.value, key_node.start_mark.line + 1
            if key_node.tag != "tag:yaml.org,2002:str":
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is not a name; keys must be text", key_node.start_mark
                )
            if key in lines:
                problem = f"the key {key!r} is written twice, first in line {lines[key]}"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            lines[key] = line
        return super().construct_mapping(node, deep=True)

    def construct_whole(self, node: yaml.ScalarNode) -> int:
        try:
            return self.construct_yaml_int(node)
        except ValueError:  # too many digits, or none under an explicit tag
            problem = f"{self.construct_scalar(node)[:20]!r}... is not an integer of at most 64 bits"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None

    def construct_list(self, node: yaml.SequenceNode) -> list:
        return self.construct_sequence(node, deep=True)  # deep, so that a list that contains itself is an error


class _Writer(yaml.SafeDumper):
    """Writes YAML. Quotes every text that a YAML 1.1 or YAML 1.2 reader would take for something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _write_text(writer: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    one_line = not re.search("[\n\r\x85\u2028\u2029]", text)
    return writer.represent_scalar("tag:yaml.org,2002:str", text, style=None if one_line else '"')


for _class in (_Reader, _Writer):
    for _tag, (_pattern, _first) in _SCALARS.items():
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), list(_first))
_Reader.yaml_constructors = {  # only the types of JSON: no dates, sets or bytes
    tag: constructor
    for tag, constructor in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag.rpartition(":")[2] in ("null", "bool", "float", "str")
}
_Reader.add_constructor("tag:yaml.org,2002:int", _Reader.construct_whole)
_Reader.add_constructor("tag:yaml.org,2002:map", _Reader.construct_mapping)
_Reader.add_constructor("tag:yaml.org,2002:seq", _Reader.construct_list)
_Writer.add_representer(str, _write_text)


def number_in(text: str) -> int | float | None:
    """Return the number that a text spells, or None. YAML 1.1 readers, for example, turn 1e-6 into the text "1e-6".

    >>> number_in("1e-6"), number_in("12"), number_in("fast")
    (1e-06, 12, None)
    """
    if re.fullmatch(rf"[-+]?{_INTEGER}", text):
        return int(text)
    return float(text) if re.fullmatch(_NUMBER, text) else None


def write_value(value: Any) -> str:
    """Return one line of YAML that reads back as exactly this value.

    >>> write_value({"learning_rate": 1e-06, "stop": ["1e-6", "yes"]})
    "{learning_rate: 1.0e-06, stop: ['1e-6', 'yes']}"
    """
    if value is None or type(value) in (bool, int):  # most values of a configuration: no need to create a writer
        return "null" if value is None else str(value).lower()
    if type(value) in (list, dict) and not value:
        return str(value)
    if type(value) is float:
        return _dump_float(repr(value))
    return _dump_text(value) if type(value) is str else _dump(value)


def _dump(value: Any) -> str:
    text = yaml.dump(
        [value], Dumper=_Writer, default_flow_style=True, width=float("inf"), allow_unicode=True, sort_keys=False
    )
    return text.rstrip("\n")[1:-1]


_dump_text = lru_cache(maxsize=1024)(_dump)  # cached mainly for the keys, which every configuration repeats


@lru_cache(maxsize=1024)  # mainly for defaults. By their text, because 0.0 equals -0.0
def _dump_float(text: str) -> str:
    return _dump(float(text))


def show(value: Any, key: str = "", limit: int = 60) -> str:
    """Return the value of a key as error messages show it: one line, shortened, without secrets."""
    if isinstance(value, float):
        return repr(value)
    try:
        text = write_value(redact(value, key))
    except yaml.YAMLError:  # a Python object that no file can hold
        text = repr(value)
    return _shortened(text, limit)


def _shortened(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def read_value(text: str, where: str) -> Any:
    """Return the value that a YAML text spells. `where` names the text in the error."""
    try:
        return usable(_parse(text), where)
    except yaml.YAMLError as error:
        raise ConfigError(
            given=f"{show(where)} is not YAML: {_problem(error)}",
            allowed="a value as you would write it in a YAML file",
            fix="Put text with braces, colons, # or quotes in quotes, inside those of the shell: 'a.b=\"...\"'.",
        ) from None


def read_override(text: str) -> tuple[str, Any]:
    """Split `a.b=value` into ("a.b", value), with the value read as YAML.

    >>> read_override("train.learning_rate=1e-6")
    ('train.learning_rate', 1e-06)
    """
    key, equals, value = text.partition("=")
    key = key.strip().removeprefix("--")
    form = {"allowed": "section.key=value", "fix": "For example train.learning_rate=1e-6."}
    if not equals or not key or "" in key.split(".") or key.count(".") >= MAX_LEVELS:
        raise ConfigError(given=f"{_shortened(repr(text))} is not an override", **form)
    if not value.strip():
        raise ConfigError(given=f"{text!r} has no value", allowed=form["allowed"], fix=f"Write {key}=null for none.")
    return key, read_value(value, text)


def read_mapping(path: str | PathLike[str]) -> dict[str, Any]:
    """Return the content of a YAML or TOML file as plain dicts, lists and scalars."""
    path = Path(path)
    text = _read_text(path)
    content = usable(_read_toml(text, path) if path.suffix == ".toml" else _read_yaml(text, path), str(path))
    if content is None:
        raise ConfigError(
            given=f"{path} is empty",
            allowed="at least model, algorithm, data and train",
            fix="Start from:\n    model: tiny:copy\n    algorithm: grpo\n    data: {train: task:copy}\n"
            "    rewards: [{name: exact_match}]\n    train: {steps: 100}",
        )
    if not isinstance(content, dict):
        kind = "a list" if isinstance(content, list) else "a single value"
        raise ConfigError(
            given=f"{path} holds {kind}: {show(content)}",
            allowed="a mapping with keys such as model, algorithm, data and train",
            fix="Write one `key: value` per line.",
        )
    return _as_then(content) if text.startswith(SAVED) else content


def _as_then(saved: dict[str, Any]) -> dict[str, Any]:
    """Return the saved settings of a run or of a pipeline. If an earlier version saved them, add how it held out rows:
    one by one."""
    stages = saved.get("stages")
    for run in [saved, *(stages if isinstance(stages, list) else [])]:
        data, model = (run.get(name) if isinstance(run, dict) else None for name in ("data", "reward_model"))
        if isinstance(data, dict) and "hold_out" not in data:
            data["hold_out"] = "rows"
            if isinstance(model, dict) and isinstance(model.get("data"), dict):  # holds only what the user has set
                model["data"].setdefault("hold_out", "rows")
    return saved


def _read_text(path: Path) -> str:
    if os.path.isdir(path):  # not pathlib, which raises if a name is too long
        inside = path / "config.yaml"
        raise ConfigError(
            given=f"{path} is a folder",
            allowed="a .yaml, .yml or .toml file",
            fix=f"Did you mean {inside}?" if inside.exists() else "Name a file.",
        )
    if path.suffix not in SUFFIXES and os.path.exists(path):
        raise ConfigError(given=f"{path} ends in {path.suffix!r}", allowed=", ".join(SUFFIXES), fix="Rename the file.")
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            given = f"{path} is a pipe, a socket or a device"
            raise ConfigError(given=given, allowed="a regular file", fix="Write the settings to a regular file.")
        if status.st_size > MAX_BYTES:
            given = f"{path} has {status.st_size:,} bytes"
            fix = "Name the file that holds the settings, and keep data in separate files."
            raise ConfigError(given=given, allowed=f"at most {MAX_BYTES:,} bytes of settings", fix=fix)
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        near = [p.name for p in path.parent.glob("*") if p.suffix in SUFFIXES] if path.parent.is_dir() else []
        close = difflib.get_close_matches(path.name, sorted(near), n=1)
        fix = f"Did you mean {path.parent / close[0]}?" if close else f"Relative paths start at {Path.cwd()}."
        if not close and path.suffix not in SUFFIXES:
            fix = "Name a .yaml, .yml or .toml file, which also names the model. `posttrain init` writes one."
        raise ConfigError(given=f"{path} does not exist", allowed="an existing file", fix=fix) from None
    except UnicodeDecodeError as error:
        given = f"{path} is not UTF-8 text: byte {error.start} cannot be read"
        raise ConfigError(given=given, allowed="UTF-8", fix="Save the file as UTF-8.") from None
    except (OSError, ValueError) as error:
        given = f"{path} cannot be read: {getattr(error, 'strerror', error)}"
        raise ConfigError(given=given, allowed="a readable file", fix="Check its permissions.") from None


def _read_toml(text: str, path: Path) -> dict[str, Any]:
    keys = (line.partition("=")[0] for line in text.splitlines() if line.count(".") > MAX_LEVELS)
    if any(key.count(".") > MAX_LEVELS and re.fullmatch(r"[\w\s\[\].\"'-]*", key) for key in keys):
        raise ConfigError(given=f"{path} is not usable TOML: too many levels", allowed=_USABLE)  # and very slow
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(given=f"{path} is not TOML: {error}", allowed="TOML 1.0", fix="Correct that line.") from None
    except (ValueError, RecursionError) as error:
        problem = "too many levels" if isinstance(error, RecursionError) else "a number has too many digits"
        raise ConfigError(given=f"{path} is not usable TOML: {problem}", allowed=_USABLE) from None


def _read_yaml(text: str, path: Path) -> Any:
    try:
        return _parse(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        quoted = text.splitlines()[line - 1].strip()[:80] if line <= len(text.splitlines()) else "the end of the file"
        raise ConfigError(
            given=f"{path}, line {line} ({quoted}): {_problem(error)}",
            allowed="valid YAML",
            fix=_yaml_fix(_problem(error)),
        ) from None
    except yaml.YAMLError as error:
        given = f"{path} is not YAML: {_problem(error)}"
        fix = "Write it with fewer levels, and without control characters."
        raise ConfigError(given=given, allowed="YAML in UTF-8", fix=fix) from None


_USABLE = f"at most {MAX_LEVELS} levels and {MAX_VALUES:,} values, integers of 64 bits, and text that UTF-8 can encode"


def usable(value: Any, where: str) -> Any:
    """Return the value. Raise ConfigError if code that reads, compares or saves it would break."""
    left: list[tuple[Any, Steps]] = [(value, ())]
    for _ in range(MAX_VALUES):
        if not left:
            return value
        here, path = left.pop()
        problem = _unusable(here, path)
        if problem:
            shown = dotted(path[:8]).encode(errors="backslashreplace").decode()
            given = f"{where}: {shown}{'...' if len(path) > 8 else ''} {problem}" if path else f"{where} {problem}"
            raise ConfigError(given=given, allowed=_USABLE)
        if isinstance(here, Mapping):
            left += [(inner, (*path, key)) for key, inner in here.items()]
        elif isinstance(here, (list, tuple)):
            left += [(inner, (*path, place)) for place, inner in enumerate(here)]
    raise ConfigError(
        given=f"{where} has more than {MAX_VALUES:,} values, repetitions by aliases included", allowed=_USABLE
    )


def _unusable(value: Any, path: Steps) -> str:
    if len(path) > MAX_LEVELS:
        return f"is more than {MAX_LEVELS} levels deep"
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        return f"is an integer of {value.bit_length()} bits"
    if any(isinstance(text, str) and re.search("[\ud800-\udfff]", text) for text in (value, *path[-1:])):
        return "holds half of a surrogate pair, which is not a character"
    return ""


# --- the lines of a file ---------------------------------------------------------------------------------------------


def line_of(file: str | PathLike[str], at: Steps, path: Steps) -> int | None:
    """Return the line of a setting, or of the section around it, below `at` or else at the top level. None if the file
    has neither."""
    try:
        text = _read_text(Path(file))
        find = _line_in_toml if Path(file).suffix == ".toml" else _line_in_yaml
        return find(text, (*at, *path), len(at) + 1) or find(text, path, 1)
    except (ConfigError, yaml.YAMLError, ValueError, RecursionError):  # the file has changed meanwhile
        return None


def _line_in_yaml(text: str, path: Steps, least: int) -> int | None:
    """Return the line of the deepest part of the path in the file; None if fewer than `least` steps exist."""
    node, line = _composed(text), None
    for depth, step in enumerate(path):
        if isinstance(node, yaml.MappingNode):
            found = next(((key, value) for key, value in node.value if key.value == str(step)), None)
        else:
            entries = node.value if isinstance(node, yaml.SequenceNode) else []
            found = (entries[step],) * 2 if isinstance(step, int) and step < len(entries) else None
        if found is None:
            return line if depth >= least else None
        line, node = found[0].start_mark.line + 1, found[1]
    return line


@lru_cache(maxsize=1)
def _composed(text: str) -> yaml.Node | None:
    """Return the nodes of a file. Every problem of a file asks for its line, so the last file is kept."""
    return yaml.compose(text, _Reader)


def _line_in_toml(text: str, path: Steps, least: int) -> int | None:
    """Like `_line_in_yaml`."""
    seen = _lines_of_toml(text)
    return next((seen[path[:length]] for length in range(len(path), least - 1, -1) if path[:length] in seen), None)


@lru_cache(maxsize=1)
def _lines_of_toml(text: str) -> Mapping[Steps, int]:
    """Return the line of each path. Reads by statements: each ends at the first line with which it is valid alone."""
    table: Steps = ()
    last: dict[Steps, int] = {}  # array of tables -> number of its last entry
    seen: dict[Steps, int] = {}
    statement, first = "", 0
    for number, line in enumerate(text.splitlines()[:MAX_LINES], 1):
        statement, first = (f"{statement}\n{line}", first) if statement else (line, number)
        try:
            parsed = tomllib.loads(statement)
        except tomllib.TOMLDecodeError:
            continue
        if statement.lstrip().startswith("["):
            *above, name = _only_path(parsed)
            table = (*_in_last_entries(above, last), name)
            if statement.lstrip().startswith("[["):
                last[table] = last.get(table, -1) + 1
            table = _in_last_entries(table, last)
            parsed = {}
        for leaf, _ in leaves(parsed):
            for length in range(len(leaf) + 1):
                seen.setdefault((*table, *leaf[:length]), first)
        statement = ""
    return seen


def _only_path(table: Any) -> Steps:
    """Return the path to the only leaf of a tree without branches.

    >>> _only_path({"a": {"b": [{}]}})
    ('a', 'b')
    """
    path: list[str | int] = []
    while table:
        if isinstance(table, dict):
            key, table = next(iter(table.items()))
            path.append(key)
        else:
            table = table[0]
    return tuple(path)


def _in_last_entries(path: Iterable[str | int], last: Mapping[Steps, int]) -> Steps:
    placed: Steps = ()
    for step in path:
        placed = (*placed, step)
        placed = (*placed, last[placed]) if placed in last else placed
    return placed


def _parse(text: str) -> Any:
    try:
        return yaml.load(text, _Reader)  # a SafeLoader: builds plain data only
    except RecursionError:
        raise yaml.YAMLError("too many levels") from None
    except (ValueError, KeyError):  # an explicit tag whose text does not fit it
        raise yaml.YAMLError("a value does not fit its tag") from None


def _problem(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError):
        return error.problem or "unreadable"
    return str(error).splitlines()[0]


def _yaml_fix(problem: str) -> str:
    if "written twice" in problem:
        return "Keep one of the two."
    if "not a name" in problem:
        return "Put the key in quotes if it is intended."
    if "\\t" in problem:
        return "Indent with spaces, not with tabs."
    return 'Check the indentation, and put text with braces, ": " or " #" in quotes, as in prompt: "{question}".'


_SECRET_WORDS = (
    r"(?:api_?keys?|secrets?|pass(?:words?|wd|phrases?|code)?|pwd|pw|credentials?|"
    r"(?:secret|private|access|signing|encryption|account|client)_?(?:access_?)?(?:keys?|secrets?))"
)
_SECRET_KEY = re.compile(rf"(?:^|_){_SECRET_WORDS}$", re.IGNORECASE)
_TOKEN_KEY = re.compile(r"(?:^|_)(?:tokens?|keys?|auth|authorization|bearer|cookie|sig|signature)$", re.IGNORECASE)
_RANDOM_TEXT = re.compile(r"(?:(?:Bearer|Basic|Token) )?[A-Za-z0-9+/=_.\-]{16,}")
_SECRET_TEXT = re.compile(
    r"\b(?:hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[abp]-|AKIA)[A-Za-z0-9_\-]{12,}|\b(?:Bearer|Basic) \S{12,}"
    r"|(?<=://)(?:[^/\s:@\"']*:[^/\s@\"']+|[A-Za-z0-9_.\-]{20,})(?=@)"
)
_ADDRESS = re.compile(r"(?<=://)[^\s\"'<>]*:[^\s\"'<>]+(?=@[\w\[])")
"""Name and password in the address of a database, up to the last @: the password may hold any character."""
_WEB = re.compile(r"\b(?:https?|wss?|file|git|ssh)://", re.IGNORECASE)
_ASSIGNED = re.compile(
    rf"(?<![A-Za-z0-9])(?:[A-Za-z0-9]+[_-])*?{_SECRET_WORDS}\s?=\s?(?P<value>[^\s;,&\"']+)", re.IGNORECASE
)
"""`password=...` in a connection string, a query or a command."""
_NAMES, _FLAG = ("name", "key", "header", "field"), re.compile(r"-{0,2}[A-Za-z][\w-]*")


def redact(value: Any, key: str = "") -> Any:
    """Return the value with everything that looks like a secret replaced by `<redacted>`, at any depth.

    Secrets are found by their keys (in a mapping, a pair or a command line), in addresses with a password, and in
    assignments within a text.

    >>> redact({"api_key": "abc", "stop_token": "</answer>", "url": "https://me:pass@host/v1"})
    {'api_key': '<redacted>', 'stop_token': '</answer>', 'url': 'https://<redacted>@host/v1'}
    >>> redact([["--password", "abc"], {"name": "api-key", "value": "abc"}, "host=h password=abc"])
    [['--password', '<redacted>'], {'name': 'api-key', 'value': '<redacted>'}, 'host=h password=<redacted>']
    """
    if isinstance(value, Mapping):
        named = next((str(value[name]) for name in _NAMES if isinstance(value.get(name), str)), "")
        said = {k: named if named and k not in _NAMES and _opens(named, value[k]) else str(k) for k in value}
        return {k: redact(v, key if _SECRET_KEY.search(_words(key)) else said[k]) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = sorted(value, key=str) if isinstance(value, (set, frozenset)) else list(value)
        keys = [key, *(one if _FLAG.fullmatch(str(one)) and isinstance(one, str) else key for one in items)]
        return [redact(v, before if _opens(before, v) else key) for before, v in zip(keys, items, strict=False)]
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if value is None or isinstance(value, bool) or value == "":
        return value
    if _opens(key, value):
        return REDACTED
    return _without_secrets(value) if isinstance(value, str) else value


def _words(key: str) -> str:
    return re.sub(r"[-\s]", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", key.lstrip("-")))


def _opens(key: str, value: Any) -> bool:
    """Return true if the key shows that this value is a secret."""
    words = _words(key)
    token = (
        isinstance(value, str) and _RANDOM_TEXT.fullmatch(value) is not None and _TOKEN_KEY.search(words) is not None
    )
    return token or _SECRET_KEY.search(words) is not None


def _without_secrets(text: str) -> str:
    if "://" in text and not _WEB.search(text):
        text = _ADDRESS.sub(REDACTED, text)
    text = _ASSIGNED.sub(lambda found: found[0].removesuffix(found["value"]) + REDACTED, text)
    return _SECRET_TEXT.sub(REDACTED, text)


def is_section(value: Any) -> bool:
    """Return true for a mapping with keys, or a list of such mappings: each of its parts has its own origin."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(entry, Mapping) and entry for entry in value)
    return isinstance(value, Mapping) and bool(value)


def leaves(tree: Any, path: Steps = ()) -> Iterator[tuple[Steps, Any]]:
    """Yield each (path, value) of a tree. A list of scalars is one leaf, and so is an empty section.

    >>> list(leaves({"train": {"steps": 3}, "rewards": [{"name": "math"}], "stop": ["a", "b"]}))
    [(('train', 'steps'), 3), (('rewards', 0, 'name'), 'math'), (('stop',), ['a', 'b'])]
    """
    if not is_section(tree):
        yield path, tree
        return
    for key, value in tree.items() if isinstance(tree, Mapping) else enumerate(tree):
        yield from leaves(value, (*path, key))


def write_tree(tree: Mapping[str, Any], comments: Mapping[str, str]) -> str:
    """Return YAML with one leaf per line, each followed by the comment for its dotted path."""
    return "\n".join(_lines(tree, comments, (), 0)) + "\n"


def _lines(tree: Any, comments: Mapping[str, str], path: Steps, depth: int) -> Iterator[str]:
    indent = "  " * depth
    for key, value in tree.items() if isinstance(tree, Mapping) else enumerate(tree):
        here = (*path, key)
        if not isinstance(tree, Mapping):
            first, *rest = _lines(value, comments, here, depth + 1)
            yield f"{indent}- {first.lstrip()}"
            yield from rest
        elif is_section(value):
            yield f"{indent}{write_value(key)}:"
            yield from _lines(value, comments, here, depth + 1)
        else:
            yield f"{indent}{write_value(key)}: {write_value(value)}{_comment(comments.get(dotted(here), ''))}"


def _comment(text: str) -> str:
    return COMMENT + "".join(c if c.isprintable() else "?" for c in text) if text else ""


def dotted(path: Steps) -> str:
    return ".".join(map(str, path))
