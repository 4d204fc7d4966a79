"""The first step of the scripts in `trl/`, run by TRL itself. The module writes first_steps_trl_1_16.json.

    make build/peers/trl/installed
    build/peers/trl/bin/python -m pip install math-verify
    PYTHONPATH=. build/peers/trl/bin/python -m tests.lab.convert.first_steps_of_trl

Every script runs unchanged, on the models and rows of peers.py, except for the paths of models and data, for settings
that need a GPU, a tracker or a random number (vLLM, bfloat16, wandb, adapters), and for `CHANGES`. The completions are
those of `peers.answer_to`.
"""

from __future__ import annotations

import inspect
import json
import os
import runpy
import shlex
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import transformers
import trl
import yaml
from tests.lab.convert import peers

HERE = Path(__file__).parent
RESULTS = HERE / "first_steps_trl_1_16.json"
PLAIN = {
    "bf16": False, "use_cpu": True, "report_to": "none", "save_strategy": "no", "eval_strategy": "no", "max_steps": 1,
    "use_vllm": False, "gradient_checkpointing": False, "disable_tqdm": True, "warmup_ratio": 0.0, "warmup_steps": 0,
    "optim": "adamw_torch", "logging_steps": 1, "push_to_hub": False, "max_grad_norm": 0.0,
}  # fmt: skip
CHANGES: dict[str, dict[str, Any]] = {
    "grpo_dr.py": {"steps_per_generation": None, "gradient_accumulation_steps": 4, "num_iterations": 1},
    "sft.yaml": {"packing": False, "eos_token": None},
    "rloo.py": {"reward_clip_range": None},
    "cispo.sh": {"gradient_accumulation_steps": 32},  # the command starts four processes
}
"""The reasons: one update on all samples, unpacked rows, the tokenizer's own end token, and a single process."""
ROWS: dict[str, tuple[Callable[[int], dict[str, Any]], int]] = {
    "cispo.sh": (peers.deepmath, 8), "dpo.py": (peers.ultrafeedback_of_trl, 32), "grpo_dr.py": (peers.questions, 4),
    "grpo_lora.py": (peers.deepmath, 4), "grpo_sequence.yaml": (peers.deepmath, 4),
    "ipo.sh": (peers.ultrafeedback_of_trl, 16), "kto.py": (peers.kto_mix, 16), "reward.py": (peers.implicit, 8),
    "rloo.py": (peers.ultrafeedback_prompt, 8), "sft.yaml": (peers.capybara, 16),
}  # fmt: skip
"""The row function and the number of rows of a whole step."""
VERBS = {"cispo.sh": "grpo", "ipo.sh": "dpo", "grpo_sequence.yaml": "grpo", "sft.yaml": "sft"}
OWN_REWARDS = (
    "right_answer = lambda completions, answer, **_: [float(a in str(c)) for c, a in zip(completions, answer)]"
)


class Told(Exception):
    """Carries the values that the trainer logs after its first step."""


class Tell(transformers.TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        control.should_log = True

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **more: Any) -> None:
        if "loss" in logs:
            raise Told({name: float(logs[name]) for name in ("loss", "grad_norm")})


def patched(name: str, folder: Path) -> None:
    """Patch TRL, transformers and datasets so that they use our models, rows and completions."""
    row, count = ROWS[name]
    rows = [row(number) for number in range(1, count + 1)]

    def load_dataset(*_: Any, split: str | None = None, **__: Any) -> Any:
        whole = datasets.Dataset.from_list(rows)
        whole.train_test_split = lambda **_: {"train": whole, "test": whole}  # the step then has the same rows as ours
        return whole if split else dict.fromkeys(("train", "test", "train_prefs", "test_prefs"), whole)

    datasets.load_dataset = load_dataset
    for auto, model in (
        (transformers.AutoModelForCausalLM, "policy"), (transformers.AutoTokenizer, "policy"),
        (transformers.AutoModelForSequenceClassification, "scorer"),
    ):  # fmt: skip
        real = auto.from_pretrained

        def from_pretrained(path: str, *given: Any, real: Any = real, model: str = model, **more: Any) -> Any:
            return real(folder / model, **{k: v for k, v in more.items() if k == "num_labels"})

        auto.from_pretrained = from_pretrained
    for kind in ("GRPO", "RLOO", "DPO", "SFT", "KTO", "Reward"):
        _trainer(getattr(trl, f"{kind}Trainer"), folder)
        _config(kind, name)


def _config(kind: str, name: str) -> None:
    real = getattr(trl, f"{kind}Config")
    known = set(inspect.signature(real).parameters)

    def made(**given: Any) -> Any:
        told = {**given, **PLAIN, **CHANGES.get(name, {}), "output_dir": tempfile.mkdtemp()}
        return real(**{field: value for field, value in told.items() if field in known})

    if name.endswith(".py"):
        setattr(trl, f"{kind}Config", made)


def _trainer(trainer: Any, folder: Path) -> None:
    real = trainer.__init__

    def init(self: Any, *given: Any, **more: Any) -> None:
        if given:
            more |= dict(zip(("model",), given, strict=True))
        if isinstance(more["model"], str):
            more["model"] = str(folder / "policy")
        more |= {"peft_config": None, "callbacks": [Tell()]}
        if "ref_model" in more:  # dpo.py gets a different reference, so that the loss of a pair is not log 2
            which = "policy" if isinstance(more["ref_model"], str) else "reference"
            more["ref_model"] = transformers.LlamaForCausalLM.from_pretrained(folder / which)
        if "reward_funcs" in more:
            more["reward_funcs"] = _rewards(more["reward_funcs"])
        more.setdefault("processing_class", transformers.AutoTokenizer.from_pretrained("policy"))
        real(self, **more)

    trainer.__init__ = init
    if hasattr(trainer, "_generate_single_turn"):
        trainer._generate_single_turn = given_completions


def _rewards(given: Any) -> list[Any]:
    """Use lengths in place of a reward model, whose tokens differ, and of a length reward that would be constant."""
    funcs = given if isinstance(given, list) else [given]
    return [length if isinstance(one, str) or one.__name__ == "longest" else one for one in funcs]


def length(completions: list[Any], **_: Any) -> list[float]:
    return [float(len(one if isinstance(one, str) else one[0]["content"])) for one in completions]


def given_completions(self: Any, prompt_ids: list[list[int]], *_: Any, **__: Any) -> Any:
    seen: Counter[str] = Counter()
    answers = []
    for ids in prompt_ids:
        prompt = self.processing_class.decode(ids)
        text, ends = peers.answer_to(prompt, seen[prompt])
        seen[prompt] += 1
        tokens = self.processing_class(text, add_special_tokens=False).input_ids
        answers.append([*tokens, self.processing_class.eos_token_id] if ends else tokens)
    return (answers, None) if type(self).__name__ == "GRPOTrainer" else answers


def command(name: str, folder: Path) -> list[str]:
    """Return the options of a command, or of a YAML file for TRL's command line."""
    path = HERE / "trl" / name
    if path.suffix == ".yaml":
        settings = yaml.safe_load(path.read_text())
    else:
        words = shlex.split(path.read_text().replace("\\\n", " "), comments=True)
        first = next(number for number, word in enumerate(words) if word == "dpo" or word.endswith("grpo.py"))
        settings, option = {}, ""
        for word in words[first + 1 :]:
            if word.startswith("--"):
                option = word[2:]
                settings[option] = True
            elif settings[option] is True:
                settings[option] = [word] if option == "reward_funcs" else word
    own = ("use_peft", "lora_r", "lora_alpha", "lora_target_modules", "vllm_mode", "dtype")
    known = set(inspect.signature(getattr(trl, f"{VERBS[name].upper()}Config")).parameters)
    plain = {option: value for option, value in PLAIN.items() if option in known}
    settings = {k: v for k, v in settings.items() if k not in own} | plain | CHANGES.get(name, {})
    settings |= {"output_dir": tempfile.mkdtemp(), "model_name_or_path": str(folder / "policy")}
    (folder / "options.yaml").write_text(yaml.safe_dump({k: v for k, v in settings.items() if v is not None}))
    return ["--config", str(folder / "options.yaml")]


def first_step(name: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        peers.policy(folder / "policy")
        peers.policy(folder / "reference", seed=2)
        peers.scorer(folder / "scorer")
        (folder / "my_rewards.py").write_text(OWN_REWARDS)
        patched(name, folder)
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        try:
            if name.endswith(".py"):
                sys.argv = [name, *(("--learning_rate", "1e-6") if name == "rloo.py" else ())]
                runpy.run_path(str(HERE / "trl" / name), run_name="__main__")
            else:
                script = __import__(f"trl.scripts.{VERBS[name]}", fromlist=["main"])
                script.main(*script.make_parser().parse_args_and_config(command(name, folder)))
        except Told as told:
            return told.args[0]
    raise RuntimeError(f"{name} ended without a step")


if __name__ == "__main__":
    if sys.argv[1:]:  # one script per process, because it patches its imports
        print(json.dumps(first_step(sys.argv[1])))
    else:
        import subprocess

        call = [sys.executable, "-m", "tests.lab.convert.first_steps_of_trl"]
        found = {}
        for name in ROWS:
            told = subprocess.run([*call, name], check=True, capture_output=True, text=True).stdout
            found[name] = json.loads(told.splitlines()[-1])
            print(name, found[name], flush=True)
        RESULTS.write_text(json.dumps({"trl": trl.__version__, "steps": found}, indent=1) + "\n")
