"""The layers of the packages, read from the source. `python -m tests.house` prints them.

`python -m tests.house COMMIT ...` prints the lines of each package at those commits next to the present numbers.

A package may import only packages that come before it in `FLOORS`. This also holds for lazy imports and for imports of
types alone. No file takes part in an import cycle.
"""

from __future__ import annotations

import ast
import functools
import gc
import io
import subprocess
import sys
import tarfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parent.parent / "src" / "posttrain"
FLOORS: tuple[tuple[str, ...], ...] = (
    ("errors", "owner", "shown", "stopping"),
    (
        "begin",
        "cache",
        "control_groups",
        "descendants",
        "files",
        "heartbeat",
        "importing",
        "plugins",
        "sources",
        "wire",
    ),
    ("child", "engine_environment"),
    ("functional",),
    ("types",),
    ("algorithms",),
    ("report", "verify"),
    ("config",),
    ("store",),
    ("explain", "data", "placement", "bundles", "ranks"),
    ("models",),
    ("engines",),
    ("rewards",),
    ("episodes",),
    ("tasks",),
    ("controller",),
    ("experience",),
    ("evaluate",),
    ("watch",),
    ("train",),
    ("export",),
    ("pipeline",),
    ("lab", "testing", "loop", "cpu", "gpu", "cluster"),
    ("posttrain", "environment"),
    ("cli",),
    ("__main__",),
)
"""The layers, lowest first. `posttrain` is the package itself, which wires the others."""
HEIGHT = {part: number for number, floor in enumerate(FLOORS) for part in floor}
SMALL = 40
READING: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "GRPO": {
        "train/loop.py": ("train_step", "minibatches"),
        "experience/assemble.py": ("assemble", "with_rewards"),
        "train/advantages.py": ("Remembering", "OfExperience", "without_truncated"),
        "train/trainer.py": ("Trainer.update", "Trainer._gradient"),
        "algorithms/grpo.py": (),
        "functional/ratios.py": ("token_ratio", "clipped_surrogate"),
    },
    "DPO": {
        "train/loop.py": ("train_step", "minibatches"),
        "train/trainer.py": ("Trainer.update", "Trainer._gradient"),
        "algorithms/dpo.py": (),
        "functional/preferences.py": ("logistic", "smoothed", "divergence_score"),
    },
}
"""The definitions that a reader goes through from the experience of a step to its update, by file. A file without
definitions is read as a whole, down to its card."""


class Import(NamedTuple):
    """A line that imports one of our modules."""

    file: Path
    line: int
    module: str
    for_types: bool
    """Whether the import happens only for type checking."""


def part_of(file: Path) -> str:
    """Return the package of a file, or the module itself if it lies on the ground floor."""
    first = file.relative_to(SOURCE).parts[0].removesuffix(".py")
    return "posttrain" if first == "__init__" else first


def module_of(file: Path) -> str:
    parts = ("posttrain", *file.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts).removesuffix(".__init__")


@functools.cache
def tree_of(file: Path) -> ast.Module:
    """Return the syntax tree of a file. No garbage is collected meanwhile: a tree is none, and has many objects."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(file.read_text(encoding="utf-8"), str(file))
    finally:
        if enabled:
            gc.enable()


@functools.cache
def nodes_of(tree: ast.Module) -> list[ast.AST]:
    """Return all nodes of a tree. The cache lets a dozen rules share one walk of the whole source."""
    return list(ast.walk(tree))


def imports_of(file: Path, modules: Mapping[str, Path]) -> Iterator[Import]:
    """Yield every import of one of our modules in the file, at any depth."""
    nodes = nodes_of(tree_of(file))
    guarded = {
        id(inner)
        for node in nodes
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in nodes:
        if isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            named = [name if name in modules else node.module for name in inside]
        else:
            continue
        for name in dict.fromkeys(named):
            if name in modules:
                yield Import(file, node.lineno, name, id(node) in guarded)


@functools.cache
def all_imports() -> list[Import]:
    modules = {module_of(file): file for file in SOURCE.rglob("*.py")}
    return [found for file in sorted(modules.values()) for found in imports_of(file, modules)]


def upward(imports: list[Import]) -> list[str]:
    """Return the imports of packages that are not on a lower floor. Neighbours on a floor may not import each other."""
    modules = {module_of(file): file for file in SOURCE.rglob("*.py")}
    found = []
    for one in imports:
        here, there = part_of(one.file), part_of(modules[one.module])
        if here != there and HEIGHT[there] >= HEIGHT[here]:
            found.append(f"{one.file.relative_to(SOURCE)}:{one.line} imports {one.module}")
    return found


def circles(imports: list[Import]) -> list[list[str]]:
    """Return the sets of files that all need each other at run time (Tarjan's strongly connected components)."""
    needs = defaultdict[str, set[str]](set)
    for one in imports:
        if not one.for_types:
            needs[module_of(one.file)].add(one.module)
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        number[module] = low[module] = len(number)
        stack.append(module)
        for other in sorted(needs[module] - {module}):
            if other not in number:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], number[other])
        if low[module] == number[module]:
            place = stack.index(module)
            circle = stack[place:]
            del stack[place:]
            if len(circle) > 1:
                found.append(sorted(circle))

    for module in sorted(needs):
        if module not in number:
            visit(module)
    return found


def lines(file: Path) -> int:
    return len(file.read_text(encoding="utf-8").splitlines())


def reading_lines(name: str, definitions: tuple[str, ...]) -> int:
    """Count the lines of the definitions with their docstrings. If none is named, count those down to the card."""
    text = (SOURCE / name).read_text(encoding="utf-8")
    if not definitions:
        return len(text.split("    card: ClassVar")[0].splitlines())
    known: dict[str, ast.stmt] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            known[node.name] = node
        if isinstance(node, ast.ClassDef):
            known |= {f"{node.name}.{one.name}": one for one in node.body if isinstance(one, ast.FunctionDef)}
    nodes = [known[definition] for definition in definitions]
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in nodes)


def sizes(texts: Mapping[Path, str]) -> dict[str, list[int]]:
    """Return the number of lines of each file, by package."""
    found = defaultdict[str, list[int]](list)
    for file, text in texts.items():
        found[part_of(file)].append(len(text.splitlines()))
    return found


def texts_at(commit: str) -> dict[Path, str]:
    """Return the source as it was at a commit, keyed by the path in the present tree."""
    root = SOURCE.parent.parent
    packed = subprocess.run(["git", "archive", commit, "src/posttrain"], cwd=root, check=True, stdout=subprocess.PIPE)
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        members = [member for member in archive if member.isfile() and member.name.endswith(".py")]
        opened = {root / member.name: archive.extractfile(member) for member in members}
        return {path: file.read().decode() for path, file in opened.items() if file is not None}


def print_growth(commits: list[str]) -> None:
    """Print the lines of each package at each commit and now. Packages that the first commit lacks come last."""
    columns = [sizes(texts_at(commit)) for commit in commits]
    columns.append(sizes({file: file.read_text(encoding="utf-8") for file in SOURCE.rglob("*.py")}))
    print(f"{'lines':<20}" + "".join(f"{name[:8]:>10}" for name in [*commits, "now"]) + f"{'change':>10}")
    parts = sorted({part for column in columns for part in column})
    for part in sorted(parts, key=lambda part: part not in columns[0]):
        counts = [sum(column.get(part, [])) for column in columns]
        row = "".join(f"{count or '-':>10}" for count in counts)
        print(f"{part:<20}{row}{counts[-1] - counts[0]:>+10}")
    for name, count in (
        ("all", lambda column: sum(map(sum, column.values()))),
        ("files", lambda column: sum(map(len, column.values()))),
        (f"files under {SMALL}", lambda column: sum(size < SMALL for sizes in column.values() for size in sizes)),
    ):
        counts = [count(column) for column in columns]
        print(f"{name:<20}" + "".join(f"{each:>10}" for each in counts) + f"{counts[-1] - counts[0]:>+10}")


def main() -> None:
    if len(sys.argv) > 1:
        print_growth(sys.argv[1:])
        return
    imports = all_imports()
    files = sorted(SOURCE.rglob("*.py"))
    by_part = Counter[str]()
    small = Counter[str]()
    for file in files:
        by_part[part_of(file)] += lines(file)
        small[part_of(file)] += lines(file) < SMALL
    print(f"{'package':<16}{'lines':>7}{'files':>7}{f'  under {SMALL}':>12}   imports")
    for floor in FLOORS:
        for part in floor:
            own = [file for file in files if part_of(file) == part]
            below = {one.module.split(".")[1] for one in imports if part_of(one.file) == part and "." in one.module}
            print(f"{part:<16}{by_part[part]:>7}{len(own):>7}{small[part]:>12}   {' '.join(sorted(below - {part}))}")
    print(f"{'all':<16}{by_part.total():>7}{len(files):>7}{small.total():>12}")
    for what, found in (("arrows that run up", upward(imports)), ("circles of files", circles(imports))):
        print(f"\n{what}: {len(found)}")
        for one in found:
            print(f"  {one if isinstance(one, str) else ' '.join(one)}")
    for step, files_of in READING.items():
        counts = {name: reading_lines(name, definitions) for name, definitions in files_of.items()}
        print(f"\na {step} step is read in {len(counts)} files, {sum(counts.values())} lines")
        for name, count in counts.items():
            print(f"  {count:>5}  {name}  {', '.join(files_of[name])}")


if __name__ == "__main__":
    main()
