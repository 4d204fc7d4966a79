"""The borders between packages, read from the source: allowed imports, and forbidden operations.

Each rule is a function from a syntax tree to complaints. Each rule is first tested on a line that breaks it.
"""

from __future__ import annotations

import ast
import functools
import gc
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.catalogue import catalogue
from tests.house import nodes_of, tree_of

from posttrain.algorithms import ALGORITHMS

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "posttrain"
FILES = sorted(SOURCE.rglob("*.py"))

PURE = {
    "__future__", "abc", "bisect", "collections", "dataclasses", "difflib", "enum", "fractions", "functools", "inspect",
    "itertools", "math", "random", "re", "statistics", "textwrap", "types", "typing",
}  # fmt: skip
"""Modules of the standard library that need no I/O, clocks or processes."""
MAY_IMPORT = {
    "functional": PURE | {"torch", "posttrain.functional"},
    "algorithms": PURE
    | {"torch", "pydantic", "pydantic_core", "importlib", "pathlib", "yaml"}
    | {f"posttrain.{part}" for part in ("algorithms", "functional", "types", "errors", "plugins")},
    "control_groups.py": PURE | {"os", "pathlib"},
    "controller": PURE | {"heapq", "json", "copy", "posttrain.controller"},
    "errors.py": {"__future__"},
    "shown.py": PURE | {"pathlib", "shlex"},
    "owner.py": PURE | {"hashlib", "os", "pathlib", "socket"},
    "files.py": PURE
    | {
        "contextlib",
        "errno",
        "hashlib",
        "io",
        "json",
        "os",
        "pathlib",
        "stat",
        "sys",
        "threading",
        "time",
        "posttrain.errors",
    },
}
NO_TORCH_WHEN_IMPORTED = (
    "posttrain.errors",
    "posttrain.plugins",
    "posttrain.config",
    "posttrain.report",
    "posttrain.cli",
)
LONGEST_FUNCTION, LONGEST_ALGORITHM = 60, 150

Rule = Callable[[ast.Module], Iterator[str]]


@pytest.fixture(scope="module", autouse=True)
def trees() -> None:
    """Read the whole source once, and let later collections of garbage skip its million nodes."""
    for path in FILES:
        tree_of(path)
    gc.freeze()


def part_of(path: Path) -> str:
    """Return the folder below posttrain/, or the name of the file if it lies directly there."""
    return path.relative_to(SOURCE).parts[0]


def check(rule: Rule, files: list[Path]) -> None:
    found = [f"{path.relative_to(ROOT)}: {text}" for path in files for text in rule(tree_of(path))]
    assert not found, "\n".join(found)


def name_of(node: ast.AST) -> str:
    """Return `torch.load` for the expression torch.load, and an empty string for anything but a dotted name."""
    if isinstance(node, ast.Attribute):
        base = name_of(node.value)
        return f"{base}.{node.attr}" if base else ""
    return node.id if isinstance(node, ast.Name) else ""


# --- imports ---------------------------------------------------------------------------------------------------------


@functools.cache
def imports(tree: ast.Module) -> list[tuple[int, str]]:
    """Return (line, dotted name) of every import at run time. `from a import b` counts as a.b."""
    return list(_imports(tree))


def _imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.If) and name_of(node.test).endswith("TYPE_CHECKING"):
            yield from (found for other in node.orelse for found in _imports(other))
        else:
            yield from _imports(node)


def imports_only(allowed: set[str]) -> Rule:
    def rule(tree: ast.Module) -> Iterator[str]:
        for line, name in imports(tree):
            if not any(name == one or name.startswith(f"{one}.") for one in allowed):
                yield f"line {line} imports {name}"

    return rule


def imports_nothing_of(refused: set[str], but: frozenset[str] | set[str] = frozenset()) -> Rule:
    def rule(tree: ast.Module) -> Iterator[str]:
        for line, name in imports(tree):
            if any(f"{name}.".startswith(f"{one}.") for one in but):
                continue
            if any(f"{name}.".startswith(f"{one}.") for one in refused):
                yield f"line {line} imports {name}"

    return rule


READS = {"posttrain.report", "posttrain.errors", "posttrain.files", "posttrain.owner", "posttrain.shown"}
REPORT = imports_nothing_of({"torch", "posttrain"}, but=READS)


@catalogue("part", MAY_IMPORT)
def test_the_inner_parts_import_only_what_they_may(part):
    check(imports_only(MAY_IMPORT[part]), [path for path in FILES if part_of(path) == part])


def test_the_report_reads_files_only():
    check(REPORT, [path for path in FILES if part_of(path) == "report"])


def test_the_core_does_not_know_the_parts_that_stand_on_it():
    """Only the command line, the experiments themselves and the package's public names may import these packages."""
    outer = {"posttrain.cli", "posttrain.lab.experiments"}
    files = [path for path in FILES if part_of(path) not in ("cli", "lab", "__main__.py", "__init__.py")]
    check(imports_nothing_of(outer), files)


def test_no_module_has_the_name_of_one_of_the_standard_library():
    """Python started in that folder would import our module instead. Only `types` is exempt, because it is public."""
    names = {path: path.parent.name if path.name == "__init__.py" else path.stem for path in FILES}
    taken = [str(path.relative_to(SOURCE)) for path, name in names.items() if name in sys.stdlib_module_names]
    assert taken == ["types.py"]


def test_nothing_but_the_cluster_imports_ray():
    check(imports_nothing_of({"ray"}), [path for path in FILES if part_of(path) != "cluster"])


def test_what_runs_without_torch_does_not_load_it():
    """One process imports them in turn, and ends at the first with which torch is there."""
    code = "import sys, importlib\n"
    code += f"for name in {NO_TORCH_WHEN_IMPORTED}:\n"
    code += "    importlib.import_module(name)\n    'torch' in sys.modules and sys.exit(f'import {name} loads torch')"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


# --- no code outside `algorithms` asks which algorithm runs -----------------------------------------------------------

KEYS, CLASSES = set(ALGORITHMS), {algorithm.__name__ for algorithm in ALGORITHMS.values()}


def texts(node: ast.AST) -> set[str]:
    return {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)}


def branches_on_an_algorithm(tree: ast.Module) -> Iterator[str]:
    """Find comparisons with an algorithm's key, cases of a match, isinstance and `type(...) is` with its class."""
    for node in nodes_of(tree):
        if isinstance(node, ast.Compare):
            named = (KEYS & texts(node)) | {name for n in ast.walk(node) if (name := name_of(n)) in CLASSES}
        elif isinstance(node, ast.MatchValue):
            named = KEYS & texts(node)
        elif isinstance(node, ast.MatchClass):
            named = CLASSES & {name_of(node.cls).rpartition(".")[2]}
        elif isinstance(node, ast.Call) and name_of(node.func) in ("isinstance", "issubclass"):
            named = CLASSES & {name_of(n).rpartition(".")[2] for n in ast.walk(node.args[1])}
        else:
            continue
        if named:
            yield f"line {node.lineno} asks which algorithm runs ({', '.join(sorted(named))})"


def peeks_at_an_algorithm(tree: ast.Module) -> Iterator[str]:
    """Find reads of settings and attributes that only some algorithms have. All have `key`, so reading it is fine."""
    for node in nodes_of(tree):
        owner, name = "", ""
        if isinstance(node, ast.Subscript):
            owner, name = name_of(node.value), "a setting"
            owner = owner if owner.endswith(".settings") else ""
        elif isinstance(node, ast.Call) and name_of(node.func).endswith(".settings.get"):
            owner, name = name_of(node.func).removesuffix(".get"), "a setting"
        elif isinstance(node, ast.Call) and name_of(node.func) in ("getattr", "hasattr"):
            owner, name = f"{name_of(node.args[0])}.settings", ", ".join(texts(node.args[1])) or "something"
        if owner.removesuffix(".settings").rpartition(".")[2] == "algorithm" and name != "key":
            assert isinstance(node, ast.expr)
            yield f"line {node.lineno} asks an algorithm for {name}, which not all have"


def test_nothing_outside_of_algorithms_asks_which_algorithm_runs():
    files = [path for path in FILES if part_of(path) != "algorithms"]
    check(branches_on_an_algorithm, files)


def test_nothing_outside_of_algorithms_asks_for_what_only_some_algorithms_have():
    files = [path for path in FILES if part_of(path) != "algorithms"]
    check(peeks_at_an_algorithm, files)


# --- what no code may do ----------------------------------------------------------------------------------------------

UNPICKLERS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
UNSAFE_YAML = {"yaml.unsafe_load", "yaml.full_load", "yaml.UnsafeLoader", "yaml.FullLoader", "yaml.Loader"}


def runs_foreign_code(tree: ast.Module) -> Iterator[str]:
    """Find calls that could let a file run code: unpickling, eval and exec, and trusting a model's own code."""
    for line, name in imports(tree):
        if name.partition(".")[0] in UNPICKLERS or name.startswith("torch.distributed.checkpoint"):
            yield f"line {line} imports {name}, which unpickles"
    for node in nodes_of(tree):
        if isinstance(node, ast.Attribute) and name_of(node) in UNSAFE_YAML:
            yield f"line {node.lineno} reads YAML with {name_of(node)}"
        if not isinstance(node, ast.Call):
            continue
        given = {k.arg: k.value.value if isinstance(k.value, ast.Constant) else ... for k in node.keywords}
        name = name_of(node.func)
        if name in ("eval", "exec", "compile", "__import__"):
            yield f"line {node.lineno} calls {name}"
        if name == "torch.load" and given.get("weights_only") is not True:
            yield f"line {node.lineno} calls torch.load without weights_only=True"
        if given.get("allow_pickle") is True or given.get("trust_remote_code") is True:
            yield f"line {node.lineno} trusts what it reads: {name}"


SETTLED = {"algorithm"}
"""What a command may name without quotes: no path and no text of a user."""


def names_a_bare_path(tree: ast.Module) -> Iterator[str]:
    """Find commands in messages, such as f"`posttrain resume {folder}`", that a shell would not read as one folder."""
    for node in nodes_of(tree):
        if not isinstance(node, ast.JoinedStr):
            continue
        for before, value in zip(node.values, node.values[1:], strict=False):
            command = isinstance(before, ast.Constant) and re.search(r"posttrain [a-z]+ ([A-Z]+ )?$", str(before.value))
            if not command or not isinstance(value, ast.FormattedValue):
                continue
            told = name_of(value.value.func) if isinstance(value.value, ast.Call) else name_of(value.value)
            if told != "shown" and told.rpartition(".")[2] not in SETTLED:
                yield f"line {node.lineno} names {ast.unparse(value.value)} in a command without shown(...)"


def test_commands_in_messages_can_be_pasted_into_a_shell():
    check(names_a_bare_path, FILES)


RUN_PROGRAMS = {"sandbox/inside/program.py", "programs/driver.py", "programs/bench.py"}
"""Files of verify/ that run foreign code in a confined process, and files that package our own code for it."""


def test_nothing_that_is_read_can_run_code():
    confined = {SOURCE / "verify" / name for name in RUN_PROGRAMS}
    check(runs_foreign_code, [path for path in FILES if path not in confined])


def too_long(tree: ast.Module) -> Iterator[str]:
    for node in nodes_of(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > LONGEST_FUNCTION:
                yield f"{node.name} has {lines} lines"


def test_no_function_is_longer_than_a_screen():
    check(too_long, FILES)


def test_the_code_of_an_algorithm_is_read_at_one_sitting():
    files = [path for path in FILES if part_of(path) == "algorithms" and path.name != "__init__.py"]
    code = {str(path): path.read_text(encoding="utf-8").partition("    card: ClassVar[Card]")[0] for path in files}
    too_many = {name: lines for name, text in code.items() if (lines := len(text.splitlines())) > LONGEST_ALGORITHM}
    assert not too_many, too_many


# --- each rule catches what it forbids --------------------------------------------------------------------------------


@catalogue(
    "rule, line",
    [
        (imports_only(MAY_IMPORT["functional"]), "from posttrain.types import Batch"),
        (imports_only(MAY_IMPORT["functional"]), "def f():\n    import os"),
        (imports_only(MAY_IMPORT["functional"]), "import torchvision"),
        (imports_only(MAY_IMPORT["algorithms"]), "from posttrain.train.loop import train_step"),
        (imports_only(MAY_IMPORT["algorithms"]), "from posttrain import train"),
        (REPORT, "import torch.nn as nn"),
        (REPORT, "from posttrain.types import Prompt"),
        (REPORT, "from posttrain import types"),
        (branches_on_an_algorithm, "if name == 'grpo': pass"),
        (branches_on_an_algorithm, "if name in ('sft', 'other'): pass"),
        (branches_on_an_algorithm, "match name:\n    case 'rloo': pass"),
        (branches_on_an_algorithm, "match algorithm:\n    case GRPO(): pass"),
        (branches_on_an_algorithm, "isinstance(algorithm, (int, algorithms.GRPO))"),
        (branches_on_an_algorithm, "if type(algorithm) is DrGRPO: pass"),
        (peeks_at_an_algorithm, "coef = config.algorithm.settings['ptx_coef']"),
        (peeks_at_an_algorithm, "a, b = (source.config.algorithm.settings[name] for name in ('a', 'b'))"),
        (peeks_at_an_algorithm, "self.config.algorithm.settings.get('correction')"),
        (peeks_at_an_algorithm, "if hasattr(algorithm, 'clip_low'): pass"),
        (peeks_at_an_algorithm, "applied = getattr(self.algorithm, 'correction', 'none')"),
        (peeks_at_an_algorithm, "asks = [name for name in names if getattr(algorithm, name, None)]"),
        (runs_foreign_code, "import pickle"),
        (runs_foreign_code, "from dill import loads"),
        (runs_foreign_code, "import torch.distributed.checkpoint as dcp"),
        (runs_foreign_code, "torch.load(path)"),
        (runs_foreign_code, "torch.load(path, weights_only=False)"),
        (runs_foreign_code, "numpy.load(path, allow_pickle=True)"),
        (runs_foreign_code, "eval(text)"),
        (runs_foreign_code, "yaml.load(text, Loader=yaml.UnsafeLoader)"),
        (runs_foreign_code, "AutoModel.from_pretrained(path, trust_remote_code=True)"),
        (names_a_bare_path, "fix = f'`posttrain resume {folder}` continues it'"),
        (names_a_bare_path, "fix = f'Give a folder: posttrain export RUN {folder} --to hf'"),
        (names_a_bare_path, "fix = f'posttrain eval {str(run.folder)}'"),
        (too_long, "def f():\n" + "    x = 1\n" * 60),
    ],
    ids=lambda case: case[1],
)
def test_the_rule_catches(rule, line):
    assert list(rule(ast.parse(line)))


@catalogue(
    "rule, line",
    [
        (imports_only(MAY_IMPORT["functional"]), "import math, torch.nn\nfrom posttrain.functional.kl import k3"),
        (imports_only(MAY_IMPORT["functional"]), "if TYPE_CHECKING:\n    from posttrain.types import Batch"),
        (REPORT, "from posttrain.errors import DataError\nfrom posttrain.report.page import write_report"),
        (branches_on_an_algorithm, "if 'entropy' in algorithm.needs and isinstance(algorithm, PolicyGradient): pass"),
        (peeks_at_an_algorithm, "getattr(algorithm, 'key', algorithm), reward.settings['timeout']"),
        (peeks_at_an_algorithm, "config.algorithm.settings.items(), algorithm.correct_from"),
        (branches_on_an_algorithm, "ALIASES = {'ppo_clip': 'grpo'}"),
        (runs_foreign_code, "model.eval()\ntorch.load(path, weights_only=True)\nyaml.safe_load(text)"),
        (runs_foreign_code, "AutoModel.from_pretrained(path, trust_remote_code=config.trust_remote_code)"),
        (names_a_bare_path, "fix = f'`posttrain resume {shown(folder)}` continues {folder}'"),
        (names_a_bare_path, "text = f'`posttrain explain {found.algorithm}`, or look into {folder}'"),
        (too_long, "def f():\n" + "    x = 1\n" * 59),
    ],
    ids=lambda case: case[1],
)
def test_the_rule_lets_pass(rule, line):
    assert list(rule(ast.parse(line))) == []
