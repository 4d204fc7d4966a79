"""User errors, how to provoke each, and the message it must give: the table behind docs/bad-inputs.md.

Each case is a command in a folder with a good run (RUN_YAML and its files); `files` and `change` make it a bad one.
`python -m tests.faults.bad_inputs` writes the page, and test_bad_inputs.py compares it with the present messages.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, chdir, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

from tests.data.malformed import GOOD, TABLE, Malformed
from tests.data.templates import CALLS
from tests.processes import run_code
from tests.tiny import tiny_model, write_prompts

from posttrain.cli import run
from posttrain.store.run_store import RunStore

PAGE = Path(__file__).parents[2] / "docs" / "bad-inputs.md"

RUN_YAML = """\
model: model
algorithm: grpo
data: {train: train.jsonl, eval: eval.jsonl}
rewards: [{function: "rewards.py:vowels"}]
sampling: {group_size: 4, max_completion_length: 8}
train: {steps: 2, prompts_per_step: 2, learning_rate: 1e-3}
evaluation: {samples: 0, prompts: 2}
guards: {max_truncated: 1.0}
output: run
report: false
"""
REWARDS_PY = """\
def vowels(completions, **columns):
    return [sum(letter in "aeiou" for letter in text) / 8 for text in completions]
"""


@dataclass(frozen=True, kw_only=True, eq=False)
class BadInput:
    """One mistake."""

    name: str
    command: str = "train run.yaml"
    """The arguments after `posttrain`, as typed in a shell."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files that are written first, over the good ones."""
    change: Callable[[Path], object] | None = None
    """Another change to the folder before the command."""
    during: Callable[[Path], AbstractContextManager[object]] = lambda folder: nullcontext()
    """A context in which the command runs."""
    says: str
    """A regular expression that the message must match."""
    exit_code: int = 2
    setup: str = ""
    """Python that a separate process runs first; if empty, the command runs in the process of the test."""
    forked: bool = False
    """Whether that process may keep its imports: `setup` also works after the imports."""
    note: str = ""
    """The effect of `change`, `during` or `setup`, in words for the page."""
    varies: str = ""
    """A regular expression for the part of the message that may differ between machines."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a case."""

    message: str
    """stderr, without the parts that differ between machines."""
    exit_code: int


# --- changes of the good folder --------------------------------------------------------------------------------------


def rows(*values: object) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


def reward(body: str, head: str = "") -> str:
    """The text of rewards.py with another body."""
    return f"{head}\n\n\n" * bool(head) + f"def vowels(completions, **columns):\n    {body}\n"


def edit_json(name: str, **changes: object) -> Callable[[Path], None]:
    """A change that sets keys of a JSON file; None removes a key."""

    def change(folder: Path) -> None:
        path = own_model(folder) / name
        content = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))

    return change


def own_model(folder: Path) -> Path:
    """A copy of the model folder that the case may change; all cases share the good one."""
    model = folder / "model"
    if model.is_symlink():
        good = model.resolve()
        model.unlink()
        shutil.copytree(good, model)
    return model


def without_eos(folder: Path) -> None:
    edit_json("tokenizer_config.json", eos_token=None)(folder)
    edit_json("generation_config.json", eos_token_id=None)(folder)
    edit_json("config.json", eos_token_id=None)(folder)


def without(*names: str) -> Callable[[Path], object]:
    return lambda folder: [(own_model(folder) / name).unlink() for name in names]


def cut_weights(folder: Path) -> None:
    path = own_model(folder) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])


def tamper(folder: Path) -> None:
    """Flip one bit in the weights of every checkpoint."""
    shutil.copytree(folder / "finished", folder / "tampered")
    for path in (folder / "tampered").glob("checkpoints/*/model/model.safetensors"):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)


def empty_state(folder: Path) -> None:
    shutil.copytree(folder / "finished", folder / "damaged")
    for path in (folder / "damaged").glob("checkpoints/*/state/*"):
        path.write_bytes(b"")


def without_checkpoints(folder: Path) -> None:
    shutil.copytree(folder / "finished", folder / "early")
    shutil.rmtree(folder / "early" / "checkpoints")


def another_writer(folder: Path) -> AbstractContextManager[object]:
    shutil.copytree(folder / "finished", folder / "busy")
    return RunStore.open(folder / "busy")


# --- the cases -------------------------------------------------------------------------------------------------------

TINY_DISK = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))"
SUPERVISED = {
    "sft.yaml": """\
model: model
algorithm: sft
data: {train: sft.jsonl}
train: {steps: 4, prompts_per_step: 2}
output: run
""",
    "sft.jsonl": rows(*[{"prompt": a, "completion": b} for a, b in zip("abcdefgh", "bcdefghi", strict=True)]),
}
READ_BY = {
    "prompts": "",
    "examples": " algorithm=sft",
    "pairs": " algorithm=dpo",
    "labels": " algorithm=kto",
    "ratings": " algorithm=reward_regression",
    "steps": " algorithm=process_reward_model",
}
"""An algorithm for each kind of data."""


def bad_row(bad: Malformed) -> BadInput:
    """A file of two rows, the second of which is bad, in a run that may drop no row."""
    algorithm, chat = READ_BY[bad.kind], bad.layout in ("conversations", "ShareGPT", "Alpaca")
    settings = " data.eval_fraction=0 data.max_dropped=0" + " rewards=[]" * bool(algorithm)
    return BadInput(
        name=bad.name,
        command=f"train run.yaml{algorithm} data.train=rows.jsonl data.eval=null{settings}"
        + " model.chat_template=chat.jinja" * chat,
        files={"rows.jsonl": rows(GOOD[bad.layout], bad.row)} | ({"chat.jinja": CALLS} if chat else {}),
        says="dropped 1 of 2 rows: 1 "
        + re.sub(r"\d+(?= tokens)", r"\\d+", re.escape(bad.reason).replace(r"\ ", " "))
        + r" \(rows.jsonl:2\)",
    )


CUT_OFF = """
import os, sys
import huggingface_hub.constants as hub
hub.HF_HUB_OFFLINE, hub.HF_HUB_CACHE = True, "cache/hub"
assert "datasets" not in sys.modules, "it has looked for a network already"
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HOME": "cache"}
"""
"""No network, in a process that has imported huggingface_hub, as forked processes have."""

CASES: Mapping[str, tuple[BadInput, ...]] = {
    "The command line": (
        BadInput(
            name="A misspelt verb", command="trian run.yaml", says="No such command 'trian'.*Did you mean 'train'"
        ),
        BadInput(
            name="A misspelt option",
            command="train run.yaml --dryrun",
            says="--dryrun is neither an option nor a setting.*Did you mean --dry-run",
        ),
        BadInput(name="A setting without a value", command="train run.yaml --train.steps", says="has no value.*VALUE"),
        BadInput(name="Two configuration files", command="train run.yaml other.yaml", says="2 configuration files"),
        BadInput(name="An unknown algorithm", command="explain gpro", says="no algorithm 'gpro'.*Did you mean grpo"),
        BadInput(
            name="A model to evaluate, but no data", command="eval model", says="no data to evaluate model on.*--data"
        ),
        BadInput(
            name="A model to evaluate, but no reward",
            command="eval model --data eval.jsonl --max-completion-length 8",
            says="no reward to judge the answers by.*--reward",
        ),
    ),
    "The configuration file": (
        BadInput(
            name="A configuration file that does not exist",
            command="train rum.yaml",
            says="rum.yaml does not exist.*Did you mean run.yaml",
        ),
        BadInput(
            name="An empty configuration file",
            files={"run.yaml": ""},
            says="run.yaml is empty.*model, algorithm, data and train",
        ),
        BadInput(
            name="YAML that cannot be read",
            files={"run.yaml": "model: model\nalgorithm: {name: grpo\ndata: train.jsonl\n"},
            says=r"run.yaml, line \d+.*allowed: valid YAML",
        ),
        BadInput(
            name="A key that is written twice",
            files={"run.yaml": RUN_YAML + "seed: 1\nseed: 2\n"},
            says="line 12.*'seed' is written twice, first in line 11.*Keep one",
        ),
        BadInput(
            name="TOML that cannot be read",
            command="train run.toml",
            files={"run.toml": 'model = "model\n'},
            says="run.toml is not TOML.*line 1",
        ),
        BadInput(
            name="A list instead of sections", files={"run.yaml": "- model\n- grpo\n"}, says="holds a list.*mapping"
        ),
        BadInput(
            name="What has no default is missing",
            files={"run.yaml": "model: model\nalgorithm: grpo\n"},
            says="3 problems.*data is missing.*train is missing.*rewards is empty",
        ),
    ),
    "Settings that do not exist": (
        BadInput(
            name="A misspelt section",
            command="train run.yaml trian.steps=3",
            says="trian.steps = 3 is not a setting.*train.steps",
        ),
        BadInput(
            name="A misspelt setting",
            command="train run.yaml train.learning_rte=1e-5",
            says="train.learning_rte = .* is not a setting.*train.learning_rate",
        ),
        BadInput(
            name="A misspelt setting of the algorithm",
            command="train run.yaml algorithm.clip_hihg=0.3",
            says="algorithm.clip_hihg = 0.3 is not a setting.*algorithm.clip_high",
        ),
        BadInput(
            name="A misspelt key in a list",
            command="train run.yaml 'rewards=[{functon: \"rewards.py:vowels\"}]'",
            says="rewards.0.functon.*is not a setting.*function",
        ),
        BadInput(
            name="A setting of another algorithm",
            command="train run.yaml algorithm=rloo algorithm.kl_estimator=k2 algorithm.baseline=none",
            says="algorithm.baseline = none is not a setting of rloo.*reinforce",
        ),
        BadInput(
            name="A name of TRL",
            command="train run.yaml num_generations=8",
            says="num_generations.*sampling.group_size",
        ),
        BadInput(
            name="Another name of TRL",
            command="train run.yaml train.per_device_train_batch_size=4",
            says="per_device_train_batch_size.*train.prompts_per_step.*tokens_per_microbatch",
        ),
        BadInput(
            name="A name of verl",
            command="train run.yaml actor_rollout_ref.rollout.n=8",
            says="actor_rollout_ref.rollout.n.*sampling.group_size",
        ),
        BadInput(
            name="A name of OpenRLHF",
            command="train run.yaml --n-samples-per-prompt=8",
            says="n.samples.per.prompt.*sampling.group_size",
        ),
    ),
    "Values that cannot be meant": (
        BadInput(
            name="Text for a number",
            command="train run.yaml train.steps=many",
            says="train.steps = many.*an integer of at least 1",
        ),
        BadInput(
            name="A negative number",
            command="train run.yaml train.learning_rate=-1",
            says="train.learning_rate = -1.*at least 0",
        ),
        BadInput(name="A number for a switch", command="train run.yaml report=1", says="report = 1.*true or false"),
        BadInput(
            name="A word that is not on the list",
            command="train run.yaml train.schedule=cosin",
            says="train.schedule = cosin.*constant, linear or cosine.*Did you mean cosine",
        ),
        BadInput(
            name="A misspelt algorithm",
            command="train run.yaml algorithm=gpro",
            says="algorithm.name = gpro.*Did you mean grpo",
        ),
        BadInput(
            name="Several mistakes at once",
            command="train run.yaml train.steps=0 sampling.top_p=2 seed=-1",
            says="3 problems.*train.steps.*sampling.top_p.*seed|3 problems",
        ),
    ),
    "Settings that contradict each other": (
        BadInput(
            name="GRPO with a group of one",
            command="train run.yaml sampling.group_size=1",
            says="sampling.group_size = 1, but grpo compares completions.*at least 2.*Set sampling.group_size = 8",
        ),
        BadInput(
            name="Top-p in training",
            command="train run.yaml sampling.top_p=0.9",
            says="sampling.top_p = 0.9 in training.*top_p = 1",
        ),
        BadInput(
            name="Greedy training",
            command="train run.yaml sampling.temperature=0",
            says="sampling.temperature = 0 in training.*a number above 0",
        ),
        BadInput(
            name="Asynchronous training",
            command="train run.yaml train.max_staleness=1",
            says="train.max_staleness = 1.*own process samples.*Set rollout.engines = 1",
        ),
        BadInput(
            name="Distillation without a teacher",
            command="train run.yaml algorithm=distillation",
            says="no teacher, but distillation with these settings learns from one.*Set teacher = PATH",
        ),
        BadInput(
            name="A teacher that nobody asks",
            command="train run.yaml teacher=model",
            says="teacher = model, but grpo with these settings never uses it.*set algorithm = distillation",
        ),
        BadInput(
            name="A teacher with another tokenizer",
            command="train run.yaml algorithm=distillation teacher=other",
            change=lambda folder: tiny_model(folder / "other", characters="zyxwvutsrqponmlkjihgfedcba"),
            says="teacher = other, whose tokenizer differs from the policy's.*a teacher with the same vocabulary",
        ),
        BadInput(
            name="The k1 estimator in the loss",
            command="train run.yaml algorithm.kl_coef=0.1 algorithm.kl_estimator=k1",
            says="kl_estimator.*k1.*k3",
        ),
        BadInput(
            name="No reward",
            command="train run.yaml rewards=[]",
            says="rewards is empty, but grpo learns from rewards.*name: math",
        ),
        BadInput(
            name="Rewards for supervised training",
            command="train run.yaml algorithm=sft",
            says="rewards = vowels, but sft learns from examples.*Leave them out",
        ),
        BadInput(
            name="Two rewards of the same name",
            command="train run.yaml 'rewards=[{name: numeric}, {name: numeric}]'",
            says="two entries of rewards are called numeric.*label",
        ),
        BadInput(
            name="More minibatches than rows",
            command="train run.yaml train.minibatches=9",
            says="train.minibatches = 9, but a step has 8 rows",
        ),
        BadInput(
            name="No room for an answer",
            command="train run.yaml sampling.max_completion_length=64",
            says="sampling.max_completion_length = 64.*context.*64",
        ),
    ),
    "Data": (
        BadInput(
            name="A data file that does not exist",
            command="train run.yaml data.train=missing.jsonl",
            says="missing.jsonl does not exist.*Paths are relative",
        ),
        BadInput(
            name="A pattern without a match",
            command="train run.yaml 'data.train=parts/*.jsonl'",
            says="no file matches parts/\\*.jsonl",
        ),
        BadInput(
            name="A folder in the place of a file",
            command="train run.yaml data.train=parts",
            files={"parts/a.jsonl": rows({"prompt": "ab"})},
            says="parts is a folder with a.jsonl.*parts/a.jsonl",
        ),
        BadInput(
            name="A form that is not known",
            command="train run.yaml data.train=train.xlsx",
            files={"train.xlsx": "?"},
            says=r"train.xlsx has an unknown format.*\.jsonl.*JSONL",
        ),
        BadInput(name="An empty data file", files={"train.jsonl": ""}, says="train.jsonl holds no rows"),
        BadInput(
            name="A broken line",
            files={"train.jsonl": rows({"prompt": "ab"}, {"prompt": "cd"}) + '{"prompt": "ef"\n'},
            says="train.jsonl, line 3, column 16: broken JSON.*line 3",
        ),
        BadInput(
            name="A line that is not UTF-8",
            change=lambda folder: (folder / "train.jsonl").write_bytes(b'{"prompt": "ab"}\n{"prompt": "\xe9"}\n'),
            says="train.jsonl, line 2, byte 13: not UTF-8.*Fix or remove line 2",
            note="The second line of `train.jsonl` holds the byte E9, an é of Latin-1.",
        ),
        BadInput(
            name="JSON that is no list of rows",
            command="train run.yaml data.train=train.json",
            files={"train.json": '{"prompt": "ab"}'},
            says="train.json holds one JSON object.*an array of objects",
        ),
        BadInput(
            name="A line of CSV with a field too many",
            command="train run.yaml data.train=train.csv",
            files={"train.csv": "prompt,answer\nab,1\ncd,2,3\n"},
            says="train.csv, line 3: .*fields.*Quote fields that contain commas",
        ),
        BadInput(
            name="No column for the prompt",
            files={"train.jsonl": rows({"query": "ab"}, {"query": "cd"})},
            says="no column for the prompt; its columns are query.*Set data.prompt",
        ),
        BadInput(
            name="A template with an unknown column",
            command="train run.yaml 'data.prompt=\"{promt}:\"'",
            says="no column 'promt'.*Did you mean 'prompt'",
        ),
        BadInput(
            name="Too many empty prompts",
            files={"train.jsonl": rows({"prompt": "ab"}, *[{"prompt": " "}] * 3)},
            says=r"dropped 3 of 4 rows: 3 empty prompt \(train.jsonl:2.*at most 50%",
        ),
        BadInput(
            name="Prompts longer than the context",
            files={"train.jsonl": rows(*[{"prompt": "ab" * 40}] * 4)},
            says="dropped 4 of 4 rows: 4 prompt longer than 56 tokens",
        ),
        BadInput(
            name="No columns to imitate",
            command="train run.yaml algorithm=sft rewards=[] data.eval=null",
            files={"train.jsonl": rows({"question": "ab"}, {"question": "cd"})},
            says="supervised training cannot use the columns question.*prompt \\+ completion",
        ),
        BadInput(
            name="A single row",
            command="train run.yaml data.eval=null",
            files={"train.jsonl": rows({"prompt": "ab"})},
            says="data.eval_fraction = 0.1 of 1 rows leaves nothing to train on",
        ),
        BadInput(
            name="No text to measure forgetting on",
            command="train run.yaml evaluation.forgetting=novel.txt",
            says="novel.txt",
        ),
        BadInput(
            name="An unknown task",
            command="train run.yaml data.train=task:srot data.eval=null",
            says="task.*srot.*Did you mean.*sort",
        ),
        BadInput(
            name="A dataset that cannot be downloaded",
            command="train run.yaml data.train=nobody/nothing data.eval=null",
            says="nobody/nothing is not a file here, and the Hugging Face dataset .* cannot be loaded",
            setup=CUT_OFF,
            forked=True,
            note="Without a network.",
        ),
    ),
    "Rows that can be read but not used": tuple(map(bad_row, TABLE)),
    "Rewards": (
        BadInput(
            name="An unknown built-in",
            command="train run.yaml 'rewards=[{name: maht}]'",
            says="rewards.name = 'maht'.*did you mean \"math\"",
        ),
        BadInput(
            name="A reward file that does not exist",
            command="train run.yaml 'rewards=[{function: \"reward.py:vowels\"}]'",
            says='reward file reward.py does not exist; did you mean "rewards.py"',
        ),
        BadInput(
            name="A reward function that does not exist",
            command="train run.yaml 'rewards=[{function: \"rewards.py:vowles\"}]'",
            says="'vowles' does not exist in .*rewards.py; did you mean \"vowels\"",
        ),
        BadInput(
            name="A file that is not Python",
            files={"rewards.py": "def vowels(completions, **columns)\n    return [0.0]\n"},
            says="importing .*rewards.py failed: SyntaxError.*line 1",
        ),
        BadInput(
            name="A function of another form",
            files={"rewards.py": "def vowels(text):\n    return 1.0\n"},
            says=r"vowels\(text\) matches neither form.*f\(prompts, completions",
        ),
        BadInput(
            name="A column that the data does not have",
            files={"rewards.py": "def vowels(completions, anwser):\n    return [0.0 for _ in completions]\n"},
            says="asks for the column 'anwser', but the data does not have it.*answer",
        ),
        BadInput(
            name="No gold answers",
            command="train run.yaml 'rewards=[{name: numeric}]'",
            files={"train.jsonl": rows({"prompt": "ab"}, {"prompt": "cd"})},
            says="asks for the column 'answer'.*data.answer|cannot use the gold answer",
        ),
        BadInput(
            name="Gold answers that are no numbers",
            command="train run.yaml 'rewards=[{name: numeric}]'",
            files={"train.jsonl": rows({"prompt": "ab", "answer": "12"}, {"prompt": "cd", "answer": "none"})},
            says='training data: reward "numeric" cannot use the gold answer of train.jsonl:2: .*none.*Correct or drop',
        ),
        BadInput(
            name="A reward that is not a number",
            files={"rewards.py": reward("return [float('nan') for _ in completions]")},
            says='reward "vowels" returned nan for prompt \\d+, completion 1 of .*Rewards must be finite',
            exit_code=4,
            varies=r'(?<=\(")[^"]*(?="\))',
        ),
        BadInput(
            name="A list of the wrong length",
            files={"rewards.py": reward("return [1.0]")},
            says='reward "vowels" returned 1 values for \\d+ completions.*one number',
            exit_code=4,
        ),
        BadInput(
            name="A reward that raises",
            files={"rewards.py": reward("return [1 / 0]")},
            says="2 of 2 completions .100%. have no reward, and the limit is 20%.*ZeroDivisionError.*return .1 / 0",
            exit_code=4,
        ),
        BadInput(
            name="A reward that hangs",
            command="train run.yaml rewards.0.timeout=4",
            files={"rewards.py": reward("time.sleep(60)", "import time")},
            says="no result after 4 s.*It hung here.*rewards.py., line 5.*raise its timeout",
            exit_code=4,
        ),
        BadInput(
            name="A reward that kills its process",
            files={"rewards.py": reward("os._exit(3)", "import os")},
            says="crash: the reward process exited with code 3",
            exit_code=4,
        ),
        BadInput(
            name="A reward that is far too large",
            files={"rewards.py": reward("return [1e300 * len(text) for text in completions]")},
            says='"vowels" returned 8e\\+300 for prompt \\d+, completion \\d.*Bound the reward',
            exit_code=4,
        ),
        BadInput(
            name="A built-in without its setting",
            command="train run.yaml 'rewards=[{name: regex}]'",
            says='reward "regex" needs settings.pattern',
        ),
        BadInput(
            name="A broken regular expression",
            command="train run.yaml 'rewards=[{name: regex, settings: {pattern: \"(\"}}]'",
            says='reward "regex" cannot work with settings.*pattern',
        ),
    ),
    "Models": (
        BadInput(
            name="A model folder that does not exist",
            command="train run.yaml model=./modle",
            says="modle.*there is no such folder",
        ),
        BadInput(
            name="A folder without a model",
            command="train run.yaml model=parts",
            files={"parts/readme.txt": ""},
            says="has no config.json",
        ),
        BadInput(
            name="A folder without weights",
            change=without("model.safetensors"),
            says="has no weights.*model.safetensors",
            note="Without model.safetensors.",
        ),
        BadInput(
            name="A folder without a tokenizer",
            change=without("tokenizer.json", "tokenizer_config.json"),
            says="has no tokenizer",
            note="Without tokenizer.json and tokenizer_config.json.",
        ),
        BadInput(
            name="Weights that were cut off",
            change=cut_weights,
            says="model.safetensors is damaged",
            note="The first 1000 bytes of model.safetensors.",
        ),
        BadInput(
            name="Weights of another shape",
            change=edit_json("config.json", intermediate_size=96),
            says="weights have another shape .6.*config.json and the weights must belong together",
            note="With intermediate_size = 96 in config.json.",
        ),
        BadInput(
            name="A tokenizer without EOS",
            change=without_eos,
            says="neither the tokenizer nor generation_config.json has an end-of-sequence token.*eos_token",
            note="Without eos_token in the tokenizer and the configs.",
        ),
        BadInput(
            name="A GGUF file that is not there",
            command="train run.yaml model.gguf_file=q4.gguf",
            says="model.gguf_file = 'q4.gguf': there is no such file",
        ),
        BadInput(
            name="A name on the Hub, without a network",
            command="train run.yaml model=nobody/nothing",
            says="nobody/nothing.*Hugging Face Hub cannot be reached",
            setup=CUT_OFF,
            forked=True,
            note="Without a network.",
        ),
        BadInput(
            name="CUDA on a machine without it",
            command="train run.yaml model.device=cuda",
            says="model.device = 'cuda', but this machine has .*Set model.device = auto",
        ),
        BadInput(
            name="LoRA on modules that do not exist",
            command="train run.yaml 'lora={target_modules: [query]}'",
            says="no linear layer named 'query'.*q_proj",
        ),
        BadInput(
            name="A chat template that is not there",
            command="train run.yaml model.chat_template=chat.jinja",
            says="model.chat_template = 'chat.jinja' cannot be read",
        ),
        BadInput(
            name="Chat with a tokenizer that has no template",
            command="train run.yaml data.chat=true",
            says="data.chat = true, but the tokenizer has no chat template",
        ),
    ),
    "Run folders": (
        BadInput(
            name="A folder that holds a run",
            command="train run.yaml --output finished",
            says="output = finished, which already holds a run.*posttrain resume finished",
        ),
        BadInput(
            name="A folder that cannot be written",
            command="train run.yaml --output train.jsonl/run",
            says="output = train.jsonl/run, which cannot be written.*Set output to another folder",
        ),
        BadInput(
            name="Resuming a folder that is no run",
            command="resume model",
            says="model holds no run.*posttrain train CONFIG",
        ),
        BadInput(
            name="Resuming a run that another process writes",
            command="resume busy",
            during=another_writer,
            says="is being written by another process.*one process per run folder",
            note="While another process trains in it.",
        ),
        BadInput(
            name="Resuming a run to fewer steps than it has done",
            command="resume finished --steps 1",
            says="train.steps = 1, but the run has done 2 steps; allowed: at least 2",
        ),
        BadInput(
            name="Resuming when every checkpoint is damaged",
            command="resume damaged",
            change=empty_state,
            says="no checkpoint in .* can be used: step-000002/state.*Restore the named files",
            exit_code=1,
            note="Each file of each state/ is empty.",
            varies=r"\d+(?= were written)",
        ),
        BadInput(
            name="Evaluating a checkpoint that was tampered with",
            command="eval tampered",
            change=tamper,
            says="no checkpoint in .* can be used: step-000002/model/model.safetensors.*",
            exit_code=1,
            note="One bit flipped in the weights of each checkpoint.",
        ),
        BadInput(
            name="Talking to a run without a checkpoint",
            command="chat early -m hello",
            change=without_checkpoints,
            says="early has no checkpoint yet.*posttrain resume early",
        ),
        BadInput(
            name="A full disk",
            says="step-000000 could not be written to run/checkpoints .*File too large.*Free some space",
            exit_code=3,
            setup=TINY_DISK,
            forked=True,
            note="No file can grow beyond 30 kB.",
            varies=r"[\d.]+(?= kB of free space)",
        ),
    ),
    "Runs that cannot end well": (
        BadInput(
            name="Dynamic sampling finds no group with signal",
            command="train run.yaml algorithm=dapo algorithm.dynamic_sampling=true train.max_sampling_rounds=3",
            files={"rewards.py": reward("return [0.0 for _ in completions]")},
            says="step 1: 0 of 6 groups in 3 rounds of sampling had a signal.*100% all wrong.*take easier prompts",
            exit_code=4,
        ),
        BadInput(
            name="No group has signal",
            command="train run.yaml train.steps=9 guards.no_signal_steps=2",
            files={"rewards.py": reward("return [0.0 for _ in completions]")},
            says="all 16 answers got reward 0 in the last 2 steps: the model can learn nothing from this.*"
            "guards.no_signal_steps = 2.*posttrain resume run",
            exit_code=4,
        ),
        BadInput(
            name="All answers are truncated",
            command="train run.yaml train.steps=9 sampling.max_completion_length=1 "
            "'guards={max_truncated: 0.5, truncated_steps: 2}'",
            says="answers .* were cut at sampling.max_completion_length = 1.*2 such steps in a row.*"
            "Set sampling.max_completion_length = 2",
            exit_code=4,
        ),
        BadInput(
            name="A learning rate that is too high",
            command="train sft.yaml train.learning_rate=1e8 train.max_grad_norm=0",
            files=SUPERVISED,
            says="step 2: the (loss|gradient norm) is (nan|inf); worst row: row \\d+ of the data.*"
            "No weight was changed.*Lower train.learning_rate",
            exit_code=4,
            varies=r"(?<=step 2: ).*(?=; allowed)",
        ),
        BadInput(
            name="A learning rate that no number can hold",
            command="train sft.yaml train.learning_rate=1e30",
            files=SUPERVISED,
            says="step 2: the loss is nan.*Lower train.learning_rate",
            exit_code=4,
            varies=r"row \d+ of the data",
        ),
        BadInput(
            name="A last step that no number can hold",
            command="train sft.yaml train.learning_rate=1e30 train.steps=1",
            files=SUPERVISED,
            says="the log-probability of .* held-out rows is not finite.*lower train.learning_rate",
            exit_code=4,
        ),
    ),
}


# --- running the cases -----------------------------------------------------------------------------------------------


def make_good(folder: Path) -> Path:
    """Make the folder that the cases start from: a model, data, a reward, a config and a finished run."""
    tiny_model(folder / "model")
    write_prompts(folder / "train.jsonl", count=8)
    write_prompts(folder / "eval.jsonl", count=4, seed=1)
    (folder / "rewards.py").write_text(REWARDS_PY)
    (folder / "run.yaml").write_text(RUN_YAML)
    with chdir(folder), redirect_stdout(StringIO()), redirect_stderr(StringIO()) as errors:
        assert run(["train", "run.yaml", "--output", "finished", "--quiet"]) == 0, errors.getvalue()
    return folder


@contextmanager
def copy_of(good: Path) -> Iterator[Path]:
    """A folder for one case; model and finished run are links, because most cases only read them."""
    with tempfile.TemporaryDirectory(prefix="bad-input-") as name:
        folder = Path(name).resolve()
        for path in good.iterdir():
            if path.is_dir():
                (folder / path.name).symlink_to(path)
            else:
                shutil.copy(path, folder)
        yield folder


def provoke(case: BadInput, good: Path) -> Outcome:
    """Provoke the error, and return the output that the user sees."""
    with copy_of(good) as folder:
        for name, content in case.files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(content)
        if case.change is not None:
            case.change(folder)
        arguments = shlex.split(case.command)
        if case.setup:
            return _in_process_of_its_own(case, arguments, folder)
        errors = StringIO()
        with chdir(folder), redirect_stdout(StringIO()), redirect_stderr(errors), case.during(folder):
            exit_code = run(arguments)
        return Outcome(message=normalised(errors.getvalue(), folder), exit_code=exit_code)


def _in_process_of_its_own(case: BadInput, arguments: list[str], folder: Path) -> Outcome:
    code = f"{case.setup}\nfrom posttrain.cli import main\nmain()"
    if case.forked:
        ended = run_code(f"import os; os.chdir({str(folder)!r})\n{code}", *arguments)
        return Outcome(
            message=normalised(ended.errors, folder), exit_code=-1 if ended.exit_code is None else ended.exit_code
        )
    found = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=folder, capture_output=True, text=True, timeout=900
    )
    return Outcome(message=normalised(found.stderr, folder), exit_code=found.returncode)


def normalised(text: str, folder: Path) -> str:
    """The text without parts that differ between machines: paths, processes, and the marks below a line of a
    traceback."""
    text = text.replace(f"{folder}/", "").replace(str(folder), "the folder").replace(f"{folder.name}/", "the folder/")
    text = re.sub(r"pid \d+ on [^\s)]+", "pid 4711 on a host", text)
    return "\n".join(line.rstrip() for line in text.splitlines() if not re.fullmatch(r"\s*[~^]+", line))


# --- the page --------------------------------------------------------------------------------------------------------

_HEAD = f"""\
# Bad inputs, and what they are told

Look up a message here: this page shows what posttrain says to each wrong input. `python -m tests.faults.bad_inputs`
makes every mistake and writes the page, and a test compares the two. A message says what was given, what is allowed
and how to fix it. The exit code is 2 for settings, data and models, 3 if something does not fit, 4 if a guard stopped
the run, 1 for anything else, and never 0.

Each command runs in a folder with a small model, prompts, a reward function and this `run.yaml`:

```yaml
{RUN_YAML}```
"""


def page(outcomes: Mapping[BadInput, Outcome]) -> str:
    """The whole text of docs/bad-inputs.md."""
    parts = [_HEAD]
    for section, cases in CASES.items():
        parts.append(f"## {section}\n")
        parts += [entry(case, outcomes[case]) for case in cases]
    return "\n".join(parts)


def entry(case: BadInput, outcome: Outcome) -> str:
    """The page's entry for a case."""
    given = [f"`{name}`:\n\n```\n{content}```\n" for name, content in case.files.items() if 1 < len(content) < 400]
    message = re.sub(case.varies, "…", outcome.message) if case.varies else outcome.message
    shown = "\n".join([f"$ posttrain {case.command}", message.strip()])
    return "\n".join(
        [
            f"### {case.name}\n",
            *given,
            *([f"{case.note}\n"] if case.note else []),
            f"```console\n{shown}\n```\n",
            f"Exit code {outcome.exit_code}.\n",
        ]
    )


def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as name:
        good = make_good(Path(name).resolve())
        PAGE.write_text(page({case: provoke(case, good) for cases in CASES.values() for case in cases}))


if __name__ == "__main__":
    main()
