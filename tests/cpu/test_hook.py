"""All results are the same without the CPU kernels: they plug into one hook, and no other code calls them."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.catalogue import few
from tests.house import nodes_of, tree_of
from tests.processes import run_code
from tests.tiny import tiny_model, write_prompts

import posttrain
from posttrain.models import acceleration

SOURCE = Path(posttrain.__file__).parent
WIDE = {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 3, "head_dim": 64}
"""1.2 million parameters: large enough that the run chooses kernels."""


@contextmanager
def nothing_registered() -> Iterator[None]:
    acceleration.register(None)
    try:
        yield
    finally:
        acceleration.register("posttrain.cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hook")
    tiny_model(folder / "model", **WIDE)
    write_prompts(folder / "prompts.jsonl", count=12)
    rows = [f'{{"prompt": "{a} plus {b}", "completion": " is {a + b}"}}' for a in range(4) for b in range(3)]
    (folder / "examples.jsonl").write_text("\n".join(rows))
    return folder


def settings(folder: Path, algorithm: str, name: str) -> dict[str, object]:
    rows = "prompts" if algorithm == "grpo" else "examples"
    own = {"rewards": [{"name": "repetition", "settings": {"n": 1}}], "guards": {"max_truncated": 1.0}}
    return {
        "model": {"path": str(folder / "model"), "device": "cpu", "precision": "float32"},
        "algorithm": algorithm,
        "data": {"train": str(folder / f"{rows}.jsonl"), "eval_fraction": 0.2},
        "sampling": {"group_size": 4, "max_completion_length": 6},
        "train": {"steps": 2, "prompts_per_step": 2, "learning_rate": 1e-4},
        "evaluation": {"writing": 0, "prompts": 2, "samples": 1},
        "checkpoint": {"every": 0},
        "output": str(folder / f"{algorithm} {name}"),
        "report": False,
        **(own if algorithm == "grpo" else {}),
    }


@pytest.mark.parametrize("algorithm", few(["grpo", "sft"], "grpo"))
def test_a_run_gives_the_same_numbers_without_the_hook(algorithm, folder):
    """The run draws the same tokens, and every number agrees to rounding."""
    fast = posttrain.train(settings(folder, algorithm, "fast"))
    with nothing_registered():
        plain = posttrain.train(settings(folder, algorithm, "plain"))
    assert plain.trainer.loaded.compute.kernels == "torch"
    for ours, theirs in zip(fast.metrics, plain.metrics, strict=True):
        for name in {"loss", "grad_norm", "reward/mean", "completions/mean_length"} & theirs.keys():
            assert ours.get(name) == pytest.approx(theirs.get(name), abs=1e-4, rel=1e-3), name


WITHOUT = """
import json, sys
sys.modules["posttrain.cpu"] = None  # importing it raises ModuleNotFoundError
import posttrain
run = posttrain.train(json.loads(sys.argv[1]))
assert run.trainer.loaded.compute.kernels == "torch", run.trainer.loaded.compute
assert not [name for name in sys.modules if name.startswith("posttrain.cpu.")]
"""


def test_a_process_in_which_the_package_cannot_be_imported_trains(folder):
    given = json.dumps(settings(folder, "grpo", "not installed"))
    done = run_code(WITHOUT, given)
    assert done.exit_code == 0, done.errors[-2000:]


def test_nobody_but_the_root_names_the_package():
    outside = [path for path in SOURCE.rglob("*.py") if path.parent.name != "cpu" and path != SOURCE / "__init__.py"]
    naming = [
        path.name
        for path in outside
        if "posttrain.cpu" in path.read_text(encoding="utf-8")
        for node in nodes_of(tree_of(path))
        if (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("posttrain.cpu"))
        or (isinstance(node, ast.Import) and any(alias.name.startswith("posttrain.cpu") for alias in node.names))
    ]
    assert naming == []


def mentions(path: Path, *names: str) -> bool:
    """Whether the text contains one of the names: only then does it have to be parsed, which takes longer."""
    text = path.read_text(encoding="utf-8")
    return any(name in text for name in names)


PRIVATE = {
    "_attn_implementation", "_can_set_attn_implementation", "_can_record_outputs", "_is_expert_parallel",
    "_supports_sdpa", "_supports_attention_backend", "_no_split_modules", "_tied_weights_keys",
}  # fmt: skip
"""Private names of transformers (with a leading underscore)."""


def test_private_names_of_transformers_are_in_one_file():
    found = {
        path.name
        for path in SOURCE.rglob("*.py")
        if mentions(path, *PRIVATE)
        for node in nodes_of(tree_of(path))
        if (isinstance(node, ast.Attribute) and node.attr in PRIVATE)
        or (isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in PRIVATE)
    }
    assert found == {"transformers_private.py"}


@pytest.mark.slow
def test_no_module_of_a_model_is_patched_in_place():
    """Another class or forward method would conflict with FSDP2 and torch.compile, which replace them, too."""
    patched = [
        f"{path.name}: {target.attr}"
        for folder in ("models", "engines", "cpu", "train", "experience", "evaluate")
        for path in (SOURCE / folder).rglob("*.py")
        if mentions(path, "__class__", "forward")
        for node in nodes_of(tree_of(path))
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute) and target.attr in ("__class__", "forward")
    ]
    assert patched == []
