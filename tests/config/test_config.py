"""The configuration: how it is read, which value wins and its origin, and what is refused with which words."""

from __future__ import annotations

import contextlib
import doctest
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.catalogue import catalogue, examples

from posttrain.algorithms import ALGORITHMS, GRPO
from posttrain.algorithms.off_policy.correction import Correction
from posttrain.algorithms.off_policy.names import NAMED
from posttrain.algorithms.settings import OF_OTHERS
from posttrain.config import (
    PRESETS,
    DataConfig,
    LoRAConfig,
    ModelConfig,
    RewardConfig,
    RunConfig,
    SamplingConfig,
    TrainConfig,
    check,
    describe_fields,
    json_schema,
    load_config,
    setting_names,
    to_yaml,
)
from posttrain.config import load as config_load
from posttrain.config import names as config_names
from posttrain.config import schema as config_schema
from posttrain.config import text as config_text
from posttrain.config.load import RULES
from posttrain.config.names import ByAlgorithm, Ours, foreign_names, foreign_values, suggest
from posttrain.config.page import config_page
from posttrain.config.text import read_override, read_value, redact, write_value
from posttrain.errors import ConfigError
from posttrain.rewards.reward_set import as_reward

MINIMAL = {
    "model": "tiny:copy",
    "algorithm": "grpo",
    "data": {"train": "task:copy"},
    "rewards": [{"name": "exact_match"}],
    "train": {"steps": 3},
}
QUICK = settings(examples(25, 100), suppress_health_check=[HealthCheck.function_scoped_fixture])


def load(*overrides: str, **sections):
    return load_config(MINIMAL | sections, overrides).config


def refusal(source=MINIMAL, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        check(load_config(source, overrides).config)
    return str(caught.value)


def write(folder: Path, text: str, name: str = "run.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


# --- reading ----------------------------------------------------------------------------------------------------------

YAML = """
model: Qwen/Qwen3-0.6B
algorithm: {name: grpo, clip_high: 0.28}
data: {train: gsm8k_train.jsonl, eval: gsm8k_test.jsonl}
rewards: [{name: math}, {function: my_rewards.py:brevity, weight: 0.1}]
sampling: {group_size: 8, max_completion_length: 512, temperature: 1}
train: {steps: 1e3, prompts_per_step: 32, learning_rate: 1e-6}
"""

TOML = """
model = "Qwen/Qwen3-0.6B"
algorithm = {name = "grpo", clip_high = 0.28}
data = {train = "gsm8k_train.jsonl", eval = "gsm8k_test.jsonl"}
rewards = [{name = "math"}, {function = "my_rewards.py:brevity", weight = 0.1}]
[sampling]
group_size = 8
max_completion_length = 512
temperature = 1
[train]
steps = 1e3
prompts_per_step = 32
learning_rate = 1e-6
"""


def test_yaml_and_toml_say_the_same(tmp_path):
    from_yaml = load_config(write(tmp_path, YAML)).config
    from_toml = load_config(write(tmp_path, TOML, "run.toml")).config
    assert from_yaml == from_toml
    assert from_yaml.train.learning_rate == 1e-6
    assert from_yaml.train.steps == 1000
    assert isinstance(from_yaml.train.steps, int)
    assert isinstance(from_yaml.sampling.temperature, float)
    assert from_yaml.algorithm.build() == GRPO(clip_high=0.28)


def test_the_minimal_file_is_valid_and_everything_else_is_a_default():
    config = load()
    check(config)
    assert config.sampling == SamplingConfig()
    assert config.lora is None
    assert config.rewards[0].weight == 1.0


@pytest.mark.parametrize("one", [np.int64, np.int32, np.uint8, np.float32, np.float64])
def test_numbers_of_numpy_are_numbers(one):
    sampling = {"group_size": one(4), "temperature": one(1)}
    config = load(seed=one(3), train={"steps": one(2)}, sampling=sampling)
    found = (config.seed, config.train.steps, config.sampling.group_size, config.sampling.temperature)
    assert found == (3, 2, 4, 1.0)
    assert [type(number) for number in found] == [int, int, int, float]
    for wrong in (np.bool_(True), np.float32(2.5), np.int64(-1)):
        with pytest.raises(ConfigError, match="an integer from 0 to "):
            load(seed=wrong)


def test_a_number_that_another_yaml_reader_took_for_text_is_a_number():
    assert load_config(yaml.safe_load(YAML)).config.train.learning_rate == 1e-6


@catalogue(
    "text, value",
    [
        ("1e-6", 1e-6),
        ("1E+2", 100.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("16_384", 16384),
        ("true", True),
        ("null", None),
        ("", None),
        ("no", "no"),
        ("on", "on"),
        ("0123456", "0123456"),
        ("2026-01-01", "2026-01-01"),
        ("12:30", "12:30"),
        ("0x1f", "0x1f"),
        ("'1e-6'", "1e-6"),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text, value):
    read = read_value(text, "test")
    assert read == value
    assert type(read) is type(value)


def test_a_config_is_frozen():
    with pytest.raises(ValidationError, match="frozen"):
        load().seed = 1  # pyright: ignore


def test_the_models_can_be_built_in_python():
    config = RunConfig(
        model=ModelConfig(path="tiny:copy"),
        lora=LoRAConfig(rank=4),
        algorithm=GRPO(clip_high=0.3),  # pyright: ignore
        data=DataConfig(train=["a.jsonl", "b.jsonl"]),
        rewards=[RewardConfig(function="rewards.py:brief", settings={"limit": 3})],
        train=TrainConfig(steps=3),
    )
    resolved = load_config(config, ["lora.alpha=8"])
    assert resolved.config.algorithm.build() == GRPO(clip_high=0.3)
    assert resolved.config.lora == LoRAConfig(rank=4, alpha=8)
    assert resolved.origins["lora.rank"] == "caller"
    assert resolved.origins["lora.dropout"] == "default"
    assert resolved.origins["algorithm.clip_high"] == "caller"
    assert resolved.origins["algorithm.clip_low"] == "default"
    assert load_config(config).config == config


def test_paths_may_be_path_objects(tmp_path):
    config = load_config(MINIMAL | {"model": tmp_path, "data": {"train": [tmp_path / "a.jsonl"]}}).config
    assert config.model.path == str(tmp_path)
    assert config.data.train == [str(tmp_path / "a.jsonl")]
    assert ModelConfig(path=tmp_path).path == str(tmp_path)


def test_a_reward_is_called_by_its_label_or_what_stands_for_it():
    assert RewardConfig(name="math").metric_name == "math"
    assert RewardConfig(function="folder/my.py:brevity").metric_name == "brevity"
    assert RewardConfig(function="package.module.brevity").metric_name == "brevity"
    assert RewardConfig(name="math", label="m").metric_name == "m"


@pytest.mark.slow
def test_importing_the_configuration_imports_no_torch():
    code = "import posttrain.config, posttrain.config.page, sys; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


# --- files that cannot be read ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("", "run.yaml", r"run.yaml is empty; allowed: at least model, algorithm, data and train"),
        ("# only a comment\n", "run.yaml", r"is empty"),
        ("- a\n- b\n", "run.yaml", r"holds a list: \[a, b\]; allowed: a mapping"),
        ("just text", "run.yaml", r"holds a single value: just text; allowed: a mapping"),
        ("model: a\ntrain: {steps: 3\n", "run.yaml", r"run.yaml, line 3 \(the end of the file\): expected ',' or '}'"),
        ("model: a\nprompt: x: y\n", "run.yaml", r"line 2 \(prompt: x: y\): mapping values are not allowed here"),
        (
            "model:\n\tpath: a\n",
            "run.yaml",
            r"line 2 .*cannot start any token; allowed: valid YAML.\n  Indent with spaces",
        ),
        (
            "seed: 1\nmodel: a\nseed: 2\n",
            "run.yaml",
            r"line 3 \(seed: 2\): the key 'seed' is written twice, first in line 1",
        ),
        ("train:\n  steps: 1\n  steps: 2\n", "run.yaml", r"line 3 .*'steps' is written twice, first in line 2"),
        ("1: a\n", "run.yaml", r"line 1 \(1: a\): the key '1' is not a name"),
        ("a: &x [*x]\n", "run.yaml", r"line 1 .*recursive"),
        ("a: !!python/object:os.system {}\n", "run.yaml", r"line 1 .*could not determine a constructor"),
        ("a: *nowhere\n", "run.yaml", r"line 1 .*undefined alias 'nowhere'"),
        ("a: 1\n---\nb: 2\n", "run.yaml", r"line 2 \(---\): but found another document"),
        pytest.param("a: " + "[" * 1500, "run.yaml", r"is not YAML: too many levels", marks=pytest.mark.slow),
        ("a: \x00", "run.yaml", r"is not YAML: unacceptable character"),
        ("a = 1\na = 2\n", "run.toml", r"run.toml is not TOML: Cannot overwrite a value \(at line 2"),
        ("a = \n", "run.toml", r"is not TOML: Invalid value \(at line 1"),
        ("{}", "run.json", r"ends in '.json'; allowed: .yaml, .yml, .toml"),
    ],
)
def test_a_broken_file_is_named_with_the_line(tmp_path, text, name, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(write(tmp_path, text, name))
    assert caught.value.fix


def test_a_missing_file_suggests_its_neighbour(tmp_path):
    write(tmp_path, YAML, "gsm8k.yaml")
    with pytest.raises(ConfigError, match=r"gms8k.yaml does not exist.*\n  Did you mean .*gsm8k.yaml\?"):
        load_config(tmp_path / "gms8k.yaml")
    with pytest.raises(ConfigError, match=r"does not exist; allowed: an existing file.\n  Relative paths start at"):
        load_config(tmp_path / "elsewhere" / "run.yaml")


def test_a_model_in_place_of_a_config_is_told_where_a_model_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("tiny:sort", "Qwen/Qwen3-0.6B"):
        with pytest.raises(ConfigError, match=f"{name} does not exist.*\n  Name a .yaml, .yml or .toml file"):
            load_config(name)
    write(tmp_path, YAML, "gsm8k.yaml")
    with pytest.raises(ConfigError, match=r"Did you mean gsm8k.yaml\?"):
        load_config("gsm8k")


def test_a_run_folder_suggests_its_config(tmp_path):
    with pytest.raises(ConfigError, match="is a folder"):
        load_config(tmp_path)
    write(tmp_path, YAML, "config.yaml")
    with pytest.raises(ConfigError, match=r"is a folder; allowed: a .yaml.*\n  Did you mean .*config.yaml\?"):
        load_config(tmp_path)


def test_a_file_that_is_not_text_is_refused(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_bytes(b"model: \xff\xfe")
    with pytest.raises(ConfigError, match="is not UTF-8 text: byte 7 cannot be read"):
        load_config(path)


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + YAML.encode())
    assert load_config(path).config.train.steps == 1000


def test_something_else_than_a_source_is_refused():
    with pytest.raises(ConfigError, match="a configuration of type int; allowed: the path of a YAML or TOML file"):
        load_config(3)  # pyright: ignore


# --- precedence and origins -------------------------------------------------------------------------------------------

LAYERED = {  # one leaf of each kind, with values that any layer may give
    "train.learning_rate": st.floats(0, 1),
    "sampling.group_size": st.integers(1, 99),
    "sampling.stop": st.lists(st.text(min_size=1), max_size=2),
    "lora.rank": st.integers(1, 64),
    "algorithm.clip_high": st.floats(0, 1),
    "data.system_prompt": st.none() | st.text(),
    "data.chat": st.sampled_from(["auto", True, False]),
    "model.chat_template_kwargs.enable_thinking": st.booleans(),
}
layer_values = st.fixed_dictionaries({}, optional=LAYERED)


def nested(values: dict) -> dict:
    tree: dict = {}
    for key, value in values.items():
        *sections, name = key.split(".")
        node = tree
        for section in sections:
            node = node.setdefault(section, {})
        node[name] = value
    return tree


@QUICK
@given(preset=layer_values, in_file=layer_values, on_command_line=layer_values)
def test_the_command_line_goes_before_the_file_before_the_preset_before_the_default(
    preset, in_file, on_command_line, tmp_path, monkeypatch
):
    monkeypatch.setattr(config_load, "PRESETS", {"test": nested(preset)})
    base = {"model.path": "m", "algorithm.name": "grpo", "data.train": "d", "train.steps": 1}
    path = write(tmp_path, yaml.safe_dump({"preset": "test", **nested(base | in_file)}))
    resolved = load_config(path, [f"{key}={write_value(value)}" for key, value in on_command_line.items()])

    dumped = resolved.config.model_dump()
    for key in LAYERED:
        by = {"command line": on_command_line, f"file:{path}": in_file, "preset:test": preset}
        origin, values = next(((o, v) for o, v in by.items() if key in v), ("default", None))
        if values is None:
            assert resolved.origins.get(key, "default") == "default"
            continue
        value = dumped
        for name in key.split("."):
            value = value[name]
        assert value == values[key]
        assert resolved.origins[key] == origin


def test_every_leaf_has_an_origin():
    resolved = load_config(MINIMAL, ["sampling.group_size=4", "rewards.0.weight=0.5"])
    assert resolved.origins["model.path"] == "caller"
    assert resolved.origins["rewards.0.name"] == "caller"
    assert resolved.origins["rewards.0.weight"] == "command line"
    assert resolved.origins["rewards.0.timeout"] == "default"
    assert resolved.origins["sampling.group_size"] == "command line"
    assert resolved.origins["sampling.stop"] == "default"
    assert resolved.origins["algorithm.clip_low"] == "default"


def test_a_bare_string_changes_only_the_main_key_of_its_section():
    resolved = load_config(MINIMAL | {"model": {"path": "a", "precision": "float32"}}, ["model=b", "algorithm=rloo"])
    assert resolved.config.model == ModelConfig(path="b", precision="float32")
    assert resolved.config.algorithm.name == "rloo"
    assert resolved.origins["model.path"] == "command line"


@pytest.mark.parametrize("section", ["rewards", "check"])
def test_a_reward_is_named_by_a_bare_string_as_in_python(section):
    entries = ["exact_match", "my_rewards.py:brevity", "package.module.score", {"name": "math", "timeout": 2.0}]
    in_full = [{"name": "exact_match"}, *({"function": entry} for entry in entries[1:3]), entries[3]]
    found = load_config(MINIMAL | {section: entries})
    assert found.config == load_config(MINIMAL | {section: in_full}).config
    for entry in entries[:3]:
        named, in_python = RewardConfig.model_validate(entry), as_reward(entry)
        assert (named.name, named.function) == (in_python.name, in_python.function)
    changed = load_config(MINIMAL | {section: ["math"]}, [f"{section}.0.timeout=2", f"{section}.0=numeric"])
    assert [(entry.name, entry.timeout) for entry in getattr(changed.config, section)] == [("numeric", 2.0)]
    assert changed.origins[f"{section}.0.name"] == "command line"
    assert load(f"{section}=[exact_match, a.py:f]").model_dump()[section][1]["function"] == "a.py:f"


def my_reward(completions, **columns): ...


@pytest.mark.parametrize("section", ["rewards", "check"])
@pytest.mark.parametrize("written", [lambda function: function, lambda function: {"function": function}])
def test_a_function_is_given_by_where_it_stands(section, written, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    said = refusal(MINIMAL | {section: [written(my_reward)]})
    assert said.startswith(f"{section}.0.function: my_reward itself, a Python function; allowed: its place, ")
    assert "a run is resumed from its folder" in said
    assert said.endswith('\n  Write "tests/config/test_config.py:my_reward".')


def test_a_function_without_a_file_is_to_be_put_into_one():
    def inner(completions): ...

    for function, name in ((inner, "inner"), (lambda completions: 0, "my_reward")):
        said = refusal(MINIMAL | {"rewards": [function]})
        assert said.endswith(f'\n  Put it into a file and write "rewards.py:{name}".')


class MyEnvironment: ...


OBJECTS: dict[str, tuple[dict[str, Any], str]] = {
    "a tool": ({"tools": my_reward}, r'tools.0: my_reward itself, a Python function.*Write "\S+config.py:my_reward"'),
    "a lambda": (
        {"tools": [lambda: 0]},
        r'tools.0: <lambda> itself, .*Put it into a file and write "tools.py:my_tool"',
    ),
    "a class": ({"environment": MyEnvironment}, r"environment.function: MyEnvironment itself, a Python class.*Write "),
    "an instance": ({"environment": MyEnvironment()}, r'environment.function: .*Write "\S+config.py:MyEnvironment"'),
    "an agent": ({"agent": {"function": print}}, r'agent.function: print itself, .*write "agent.py:print"'),
    "a model": ({"model": Ellipsis}, "model: a Python ellipsis; allowed: the folder or the name of a model.*save_pre"),
    "a model and its tokenizer": ({"model": (Ellipsis, Ellipsis)}, "model: a Python list; allowed: the folder"),
    "a model as path": ({"model": {"path": Ellipsis}}, "model: a Python ellipsis; allowed: the folder"),
    "rows": (
        {"data": [{"prompt": "a"}]},
        "data: rows themselves, a Python list; allowed: their source: .*data.train = ",
    ),
    "an iterator": ({"data": iter(())}, "data: rows themselves, a Python tuple_iterator; allowed: their source"),
    "rows to train on": ({"data": {"train": [{"prompt": "a"}]}}, "data.train: rows themselves, a Python list; allowed"),
    "rows to evaluate on": (
        {"data": {"train": "a.jsonl", "eval": [{"prompt": "a"}]}},
        "data.eval: rows themselves, .*set data.eval = ",
    ),
    "rows beside": (
        {"data": {"train": "a.jsonl", "auxiliary": [{"text": "a"}]}},
        "data.auxiliary: rows themselves, .*set data.auxiliary = ",
    ),
    "files": (
        {"data": ["a.jsonl", "b.jsonl"]},
        r"data = \[a.jsonl, b.jsonl\].*for example data = {train: train.jsonl}",
    ),
}
"""Python objects that a config cannot hold, and what the refusal says."""


@catalogue("given, said", OBJECTS.values(), ids=OBJECTS)
def test_a_config_refuses_python_objects_with_what_to_write_in_their_place(given, said):
    assert re.match(f"(?s){said}", refusal(MINIMAL | given))


def test_null_switches_a_section_off_and_a_setting_below_it_on_again():
    assert load("lora=null", lora={"rank": 8}).lora is None
    assert load("lora.alpha=4", lora=None).lora == LoRAConfig(alpha=4)
    assert load(lora={}).lora == LoRAConfig()


def test_a_layer_is_not_changed_by_a_later_one():
    rewards = [{"name": "math"}]
    load_config(MINIMAL | {"rewards": rewards}, ["rewards.0.weight=2"])
    assert rewards == [{"name": "math"}]


def test_a_new_list_brings_its_own_origins():
    resolved = load_config(MINIMAL | {"rewards": [{"name": "math", "weight": 2}]}, ["rewards=[{name: numeric}]"])
    assert resolved.config.rewards == [RewardConfig(name="numeric")]
    assert resolved.origins["rewards.0.name"] == "command line"
    assert resolved.origins["rewards.0.weight"] == "default"


def test_what_an_algorithm_leaves_open_is_derived():
    resolved = load_config(MINIMAL | {"algorithm": "dr_grpo"}, ["sampling.max_completion_length=99"])
    assert resolved.config.algorithm.settings["max_completion_length"] == 99
    assert resolved.origins["algorithm.max_completion_length"] == "derived: sampling.max_completion_length"
    turns = ["tools=calculator", "sampling.max_turns=3", "sampling.max_completion_length=99"]
    for more, length, follows in (
        ([], 297, "sampling.max_turns * sampling.max_completion_length"),
        (["sampling.max_trajectory_length=200"], 200, "sampling.max_trajectory_length"),
        (["environment.credit=turn"], 99, "sampling.max_completion_length"),
    ):
        resolved = load_config(MINIMAL | {"algorithm": "dr_grpo"}, [*turns, *more])
        assert resolved.config.algorithm.settings["max_completion_length"] == length
        assert resolved.origins["algorithm.max_completion_length"] == f"derived: {follows}"
    chosen = load_config(MINIMAL, ["algorithm={name: dr_grpo, max_completion_length: 7}"])
    assert chosen.config.algorithm.settings["max_completion_length"] == 7
    assert chosen.origins["algorithm.max_completion_length"] == "command line"


# --- overrides --------------------------------------------------------------------------------------------------------

plain_text = st.text(st.characters(exclude_categories=["Cs"]))
integers = st.integers(-(2**63), 2**63 - 1)
scalars = st.none() | st.booleans() | integers | st.floats(allow_nan=False) | plain_text
plain_data = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(plain_text, inner, max_size=3), max_leaves=8
)


@QUICK
@given(value=plain_data)
def test_an_override_carries_every_value(value):
    assert read_override(f"a.b={write_value(value)}") == ("a.b", value)


@QUICK
@given(value=plain_data)
def test_a_written_value_is_one_line_that_other_yaml_readers_understand(value):
    text = write_value(value)
    assert len(text.splitlines()) == 1
    assert yaml.safe_load(f"a: {text}  # comment") == {"a": value}


@catalogue(
    "override, path, value",
    [
        ("train.learning-rate=1e-4", "train.learning_rate", 1e-4),
        ("--train.learning-rate=1e-4", "train.learning_rate", 1e-4),
        ("sampling.group-size=4", "sampling.group_size", 4),
        ("algorithm.clip-high=0.5", "algorithm.clip_high", 0.5),
        ("rewards.0.weight=-2", "rewards.0.weight", -2.0),
        ("rewards.0.settings.two-words=x", "rewards.0.settings.two-words", "x"),
        ("model.chat_template_kwargs.enable_thinking=false", "model.chat_template_kwargs.enable_thinking", False),
        ('sampling.stop=["</a>", "\\n"]', "sampling.stop", ["</a>", "\n"]),
        ("data.train=[a, b]", "data.train", ["a", "b"]),
        ('data.prompt="{Body} {Question}"', "data.prompt", "{Body} {Question}"),
        ("data.prompt=a=b", "data.prompt", "a=b"),
    ],
)
def test_an_override_reaches_its_setting(override, path, value):
    resolved = load_config(MINIMAL, [override])
    node = resolved.config.model_dump()
    for step in path.split("."):
        node = node[int(step)] if isinstance(node, list) else node[step]
    assert node == value
    assert resolved.origins[path] == "command line"


def test_overrides_from_python_are_nested_or_dotted():
    resolved = load_config(MINIMAL, {"seed": 1, "train": {"steps": 5}, "sampling.group_size": 4})
    assert (resolved.config.seed, resolved.config.train.steps, resolved.config.sampling.group_size) == (1, 5, 4)
    assert resolved.origins["train.steps"] == "caller"


def test_overrides_count_in_their_order():
    assert load("seed=1", "seed=2").seed == 2
    assert load("rewards=[{name: a}]", "rewards.0.weight=2", "rewards=[{name: b}]").rewards == [RewardConfig(name="b")]


@catalogue(
    "override, message",
    [
        ("train.steps", "'train.steps' is not an override; allowed: section.key=value"),
        ("=3", "'=3' is not an override"),
        ("train..steps=3", "is not an override"),
        ("train.steps=", "'train.steps=' has no value; allowed: section.key=value.\n  Write train.steps=null for none"),
        ("data.prompt={Body} {Question}", "is not YAML: .*\n  Put text with braces, colons, # or quotes in quotes"),
        ("rewards.1.weight=2", "rewards.1.weight: there is no entry '1' in this list .*; allowed: 0 to 0"),
        ("rewards.math.weight=2", "there is no entry 'math' in this list"),
        ("check.0.weight=2", "check = {'?0'?: {weight: 2}} .argument .*; allowed: a list"),
        ("train.steps.x=2", "train.steps = {x: 2} .argument .*; allowed: an integer of at least 1"),
    ],
)
def test_an_override_that_cannot_be_meant_is_refused(override, message):
    with pytest.raises(ConfigError, match=message):
        load_config(MINIMAL, [override])


# --- values of the wrong type or size ---------------------------------------------------------------------------------


@catalogue(
    "override, message",
    [
        (
            "train.steps=many",
            "train.steps = many .argument .*; allowed: an integer of at least 1.\n  Set train.steps = 200",
        ),
        ("train.steps=0", "train.steps = 0 .*allowed: an integer of at least 1"),
        ("train.steps=1.5", "train.steps = 1.5 .*allowed: an integer of at least 1"),
        ("train.steps=true", "train.steps = true .*allowed: an integer of at least 1"),
        ("train.steps='3.5'", "train.steps = 3.5 .*; allowed: an integer of at least 1"),
        (
            "train.learning_rate=fast",
            "allowed: a number of at least 0.\n  Set train.learning_rate = 1e-06, the default",
        ),
        ("train.learning_rate=.nan", "train.learning_rate = nan .*; allowed: a number of at least 0"),
        ("train.learning_rate=-1", "train.learning_rate = -1 .*; allowed: a number of at least 0"),
        ("sampling.top_p=0", "sampling.top_p = 0 .*; allowed: a number above 0 and of at most 1"),
        ("guards.max_unscored=20", "guards.max_unscored = 20 .*; allowed: a number from 0 to 1"),
        ("data.chat=yes", "data.chat = 'yes' .*; allowed: auto, true or false.\n  Write data.chat = true"),
        ("report=off", "report = 'off' .*; allowed: true or false.\n  Write report = false"),
        ("model.attention=sdp", "allowed: sdpa or eager.\n  Did you mean sdpa"),
        ("model.revision=123", 'allowed: text or null.\n  Put it in quotes: model.revision = "123"'),
        ("model=''", "model.path = '' .*; allowed: text.\n  Set model.path = Qwen/Qwen3-0.6B, for example"),
        ("data.prompt={Body}", r'data.prompt = {Body: null} .*\n  Put the text in quotes: data.prompt = "{Body}"'),
        ("data.train=[1]", "data.train.0 = 1 .*; allowed: text"),
        (
            "sampling.stop=x",
            r"sampling.stop = x .*; allowed: a list \(text each\).\n  Write a list: sampling.stop = \[x\]",
        ),
        ("rewards={name: math}", r"rewards = {name: math} .*\n  Write a list: rewards = \[{name: math}\]"),
        ("data.train={a: b}", r"data.train = {a: b} .*; allowed: text .*\n  (?!Write a list)\w"),
        ("sampling.stop=3", r"sampling.stop = 3 .*\n  (?!Write a list)\w"),
        ("rewards=[3]", "rewards.0 = 3 .*; allowed: a section .name, function, model, judge, ..."),
        ("rewards=math", r"rewards = {name: math} .*\n  Write a list: rewards = \[{name: math}\]"),
        (
            "rewards=[{}]",
            "rewards.0: none of name, function, model and judge is set .*; allowed: exactly one of name, function",
        ),
        ("rewards=[{name: a, function: b}]", "rewards.0: both name and function are set"),
        (
            "lora=true",
            "lora = true .*; allowed: a section .*or null.\n  Write its settings below lora, or set lora = {} for all",
        ),
        ("lora.target_modules=[]", r"lora.target_modules = \[\] .*; allowed: all-linear or a list"),
        ("sampling=null", "sampling = null .*; allowed: a section .group_size"),
        (
            "algorithm=gropo",
            "algorithm.name = gropo, and there is no such algorithm .*\n  Did you mean grpo",
        ),
        ("algorithm.name=3", "algorithm.name = 3, .*; allowed: a name such as grpo"),
        ("algorithm.clip_low=-1", "algorithm.clip_low = -1 .argument .*; allowed: a number of at least 0"),
        ("algorithm.clip_low=true", "algorithm.clip_low = true .*; allowed: a number of at least 0"),
        ("algorithm.kl_estimator=k9", "algorithm.kl_estimator = k9 .*; allowed: k2, k3"),
        ("algorithm.kl_estimator=k1", "algorithm.kl_estimator: kl_estimator = 'k1' in the loss"),
    ],
)
def test_a_wrong_value_gets_given_allowed_and_fix(override, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(MINIMAL, [override])
    assert "pydantic" not in str(caught.value)
    assert caught.value.fix
    assert caught.value.exit_code == 2


def test_a_settings_of_the_algorithm_may_be_a_quoted_number():
    assert load(algorithm={"name": "grpo", "clip_low": "3e-4"}).algorithm.settings["clip_low"] == 3e-4


def test_what_is_missing_is_named_with_an_example():
    message = refusal({"model": "m", "train": {}})
    assert "algorithm is missing" in message
    assert "Set algorithm = grpo, for example." in message
    assert "data is missing" in message
    assert "train.steps is missing; allowed: an integer of at least 1." in message
    assert "model" not in message


def test_models_built_in_python_say_it_in_the_same_words():
    with pytest.raises(ConfigError, match=r"group_size = 0; allowed: an integer of at least 1"):
        SamplingConfig(group_size=0)
    with pytest.raises(ConfigError, match=r"TRL's num_generations is sampling.group_size here"):
        SamplingConfig(num_generations=8)  # pyright: ignore
    with pytest.raises(ConfigError, match=r"train.steps = 0; allowed: an integer of at least 1"):
        RunConfig(**MINIMAL | {"train": {"steps": 0}})  # pyright: ignore


def test_a_python_object_that_no_file_can_hold_is_refused():
    with pytest.raises(ConfigError, match=r"rewards.0.settings.x = <object object at .*; allowed: plain data"):
        load_config(MINIMAL | {"rewards": [{"name": "math", "settings": {"x": object()}}]})


# --- unknown keys -----------------------------------------------------------------------------------------------------


@catalogue(
    "override, hint",
    [
        ("group_size=4", "It belongs to sampling. Set sampling.group_size = 4."),
        ("train.group_size=4", "It belongs to sampling. Set sampling.group_size = 4."),
        ("learning_rate=1e-4", "It belongs to train. Set train.learning_rate = 0.0001."),
        ("algorithm.learning_rate=1e-4", "It belongs to train. Set train.learning_rate = 0.0001."),
        ("clip_high=0.3", "It belongs to algorithm. Set algorithm.clip_high = 0.3."),
        ("train.seed=4", "It belongs to the top level. Set seed = 4."),
        ("temperature=1", "Did you mean sampling.temperature or evaluation.temperature?"),
        ("sampling.groupsize=4", "Did you mean sampling.group_size?"),
        ("sampling.temprature=4", "Did you mean sampling.temperature?"),
        ("evaluate.max_prompts=32", "Did you mean evaluation.prompts?"),
        ("evaluate.every=2", "Did you mean evaluation.every?"),
        ("evaluations.prompt=3", "Did you mean evaluation.prompts or data.prompt?"),
        ("sample.temperature=1", "Did you mean sampling.temperature?"),
        ("evaluations.zebra=1", "Remove it; evaluation has every, prompts, samples, "),
        ("evaluation.k=2", "evaluation.k is evaluation.samples here. Set evaluation.samples = 2."),
        ("sampling.ks=2", "Remove it; sampling has group_size, "),
        ("train.k=2", "algorithm.k is a setting of other algorithms. Leave it out."),
        ("train.micro_batch_tokens=4", "Did you mean train.tokens_per_microbatch?"),
        ("tokens_per_micro_batch=4", "Did you mean train.tokens_per_microbatch?"),
        ("train.chunk_tokens=4", "Did you mean train.logprob_chunk_tokens?"),
        ("presett=smoke", "Did you mean preset?"),
        ("samplng={}", "Did you mean sampling?"),
        ("rewards.0.func=x", "Did you mean rewards.function?"),
        ("rewards.0.sandbox=landlock", "under its key settings: settings: {sandbox: landlock}"),
        ("rewards.0.max_length=9", "under its key settings: settings: {max_length: 9}"),
        ("overlong_buffer_len=9", "OpenRLHF's overlong_buffer_len is rewards here ({name: soft_overlong"),
        ("stop_properly_penalty_coef=0", "is rewards here ({name: finished}"),
        ("algorithm.clip_hgih=1", "Did you mean algorithm.clip_high?"),
        ("train.num_generation=8", "TRL's num_generations is sampling.group_size here. Set sampling.group_size = 8."),
        ("zebra=1", "Remove it; the top level has preset, model, lora, "),
        ("checkpoint.zebra=1", "Remove it; checkpoint has every, keep."),
        ("algorithm.baseline=none", "It is one of reinforce"),
        # TRL
        ("num_generations=8", "TRL's num_generations is sampling.group_size here. Set sampling.group_size = 8."),
        ("sampling.num_generations=8", "TRL's num_generations is sampling.group_size here."),
        ("epsilon=0.1", "TRL's epsilon is algorithm.clip_low here (algorithm.clip_high limits the other side)."),
        (
            "algorithm.epsilon_high=0.28",
            "TRL's epsilon_high is algorithm.clip_high here. Set algorithm.clip_high = 0.28.",
        ),
        ("beta=0.04", "TRL's and OpenRLHF's beta is algorithm.kl_coef here. Set algorithm.kl_coef = 0.04."),
        ("algorithm.beta=0.04", "TRL's and OpenRLHF's beta is algorithm.kl_coef here. Set algorithm.kl_coef = 0.04."),
        ("max_completion_length=9", "TRL's max_completion_length is sampling.max_completion_length here."),
        (
            "per_device_train_batch_size=8",
            "posttrain has no device batch size: set train.prompts_per_step; "
            "micro-batches are derived from train.tokens_per_microbatch.",
        ),
        ("train.gradient_accumulation_steps=2", "posttrain has no accumulation steps"),
        ("num_train_epochs=3", "posttrain counts optimizer steps"),
        ("max_steps=10", "TRL's max_steps is train.steps here. Set train.steps = 10."),
        ("warmup_ratio=0.1", "is train.warmup_steps here (counted in steps: the ratio times train.steps)."),
        ("vllm_gpu_memory_utilization=0.3", "Set rollout.engine, rollout.engines and rollout.placement"),
        ("bf16=true", "model.precision here (auto, float32 or bfloat16)."),
        ("lora.r=8", "lora.r is lora.rank here."),
        ("lora_alpha=8", "TRL's lora_alpha is lora.alpha here."),
        ("trainer.logger=[wandb]", "report_to"),
        ("wandb_project=sums", "WANDB_PROJECT"),
        ("loss_type=dapo", "TRL's loss_type is algorithm.name here (grpo, dr_grpo, dapo, gspo, cispo, "),
        ("reward_model_name_or_path=rm", "is rewards here (a list: [{model: FOLDER}]; {model: reward_model} is"),
        ("train.reward_model_path=rm", "is rewards here (a list: [{model: FOLDER}]"),
        ("vllm_importance_sampling_correction=true", "is algorithm.correction here (trl for true, none for false)."),
        ("vllm_importance_sampling_cap=3", "Set algorithm.correction.high = 3."),
        ("vllm_importance_sampling_mode=token_mask", "is algorithm.correction.action here (truncate, mask or reject"),
        ("off_policy_mask_threshold=0.5", "Set algorithm.max_negative_divergence = 0.5."),
        ("save_total_limit=2", "TRL's save_total_limit is checkpoint.keep here."),
        # verl
        ("actor_rollout_ref.rollout.n=8", "verl's rollout.n is sampling.group_size here."),
        ("actor_rollout_ref.rollout.val_kwargs.n=8", "verl's val_kwargs.n is evaluation.samples here."),
        ("data.train_batch_size=64", "verl's data.train_batch_size is train.prompts_per_step here."),
        ("actor.ppo_micro_batch_size_per_gpu=1", "posttrain has no device batch size"),
        ("actor_rollout_ref.actor.clip_ratio_high=0.28", "clip_ratio_high is algorithm.clip_high here."),
        ("actor_rollout_ref.actor.kl_loss_coef=0.1", "kl_loss_coef is algorithm.kl_coef here."),
        (
            "actor_rollout_ref.actor.optim.lr=1e-5",
            "optim.lr is train.learning_rate here. Set train.learning_rate = 1e-05.",
        ),
        ("critic.optim.lr=1e-5", "critic.optim.lr is critic.learning_rate here. Set critic.learning_rate = 1e-05."),
        ("critic.lr=1e-5", "critic.lr is critic.learning_rate here. Set critic.learning_rate = 1e-05."),
        ("algorithm.rollout_is=token", "verl's algorithm.rollout_is is algorithm.correction here (auto, none, tis, "),
        ("rollout_is_threshold=2", "is algorithm.correction.high here"),
        ("algorithm.rollout_correction.rollout_is=token", "is algorithm.correction here"),
        ("actor_rollout_ref.actor.tis_imp_ratio_cap=2", "Set algorithm.correction.high = 2."),
        ("reward.reward_model.enable=true", "Reward models are entries of rewards: rewards = [{model: FOLDER}]"),
        ("trainer.critic_warmup=20", "verl's trainer.critic_warmup is critic.warmup_steps here."),
        ("algorithm.adv_estimator=grpo", "verl's algorithm.adv_estimator is algorithm.name here"),
        ("trainer.total_epochs=3", "posttrain counts optimizer steps"),
        ("clip_ratio_low=0.1", "verl's clip_ratio_low is algorithm.clip_low here."),
        # OpenRLHF
        ("n_samples_per_prompt=8", "OpenRLHF's n_samples_per_prompt is sampling.group_size here."),
        ("rollout_batch_size=64", "OpenRLHF's rollout_batch_size is train.prompts_per_step here."),
        ("micro_train_batch_size=4", "posttrain has no device batch size"),
        ("init_kl_coef=0.01", "OpenRLHF's init_kl_coef is algorithm.kl_coef here."),
        ("generate_max_len=64", "OpenRLHF's generate_max_len is sampling.max_completion_length here."),
        ("advantage_estimator=rloo", "OpenRLHF's advantage_estimator is algorithm.name here"),
        ("actor_learning_rate=1e-6", "OpenRLHF's actor_learning_rate is train.learning_rate here."),
        ("critic_learning_rate=9e-6", "OpenRLHF's critic_learning_rate is critic.learning_rate here."),
        ("policy_loss_type=gspo", "a preset: openrlhf-group-norm or openrlhf-reinforce-clipped)."),
        ("remote_rm_url=http://localhost", "OpenRLHF's remote_rm_url is rewards here (a list: [{model: FOLDER}]"),
        ("reward_pretrain=rm", "OpenRLHF's reward_pretrain is rewards here (a list: [{model: FOLDER}]"),
        # others
        ("actor.use_decoupled_loss=true", "AReaL's use_decoupled_loss is algorithm.correction here (decoupled; the "),
        ("actor.behav_imp_weight_cap=5", "Set algorithm.correction.high = 5."),
        ("use_tis=true", "use_tis is algorithm.correction here (tis for true)."),
    ],
)
def test_an_unknown_key_leads_to_ours_or_to_the_reason(override, hint):
    message = refusal(MINIMAL, override)
    key = override.partition("=")[0]
    assert f"{key} = " in message
    assert "is not a setting" in message
    assert hint in message


KEYS = [key for key in setting_names() if not key.startswith("algorithm.")]


@given(st.sampled_from([key for key in KEYS if min(map(len, key.rpartition(".")[2].split("_"))) >= 3]), st.data())
def test_the_words_of_a_key_in_another_order_lead_to_it(key, data):
    """Unless the words lead to another library's key, or to several of ours."""
    section, _, name = key.rpartition(".")
    words = data.draw(st.permutations(name.split("_")))
    path = f"{section}.{'_'.join(words)}".lstrip(".")
    said = [one for one in KEYS if all(word in one.rpartition(".")[2].replace("_", "") for word in words)]
    here = [one for one in said if one.rpartition(".")[0] == section]
    if len(words) > 1 and here == [key] and path not in KEYS and config_names.foreign(path, "1", ()) is None:
        assert key in config_names.suggest(path, "1", KEYS).text


@catalogue(
    "algorithm, override, hint",
    [
        # TRL
        ("dpo", "beta=0.2", "beta is algorithm.beta here. Set algorithm.beta = 0.2."),
        ("ipo", "beta=0.2", "beta is algorithm.tau here. Set algorithm.tau = 0.2."),
        ("ipo", "algorithm.beta=0.2", "beta is algorithm.tau here. Set algorithm.tau = 0.2."),
        ("dpo", "loss_type=sigmoid_norm", "for preferences sigmoid is dpo, sigmoid_norm length_normalized_dpo, "),
        (
            "dpo",
            "label_smoothing=0.1",
            "algorithm.label_smoothing here (with dpo it is cDPO, where TRL's sigmoid ignores",
        ),
        (
            "dpo",
            "max_length=1024",
            "data.max_length here (for given answers; longer rows are dropped and counted, never",
        ),
        ("dpo", "max_prompt_length=512", "Set data.max_prompt_length = 512."),
        ("dpo", "truncation_mode=keep_end", "Rows longer than data.max_length are dropped and counted, never cut."),
        ("dpo", "precompute_ref_log_probs=true", "always computed before the first step and kept on disk"),
        (
            "dpo",
            "ref_model_init_kwargs={}",
            "ref_model_init_kwargs is reference here (a section: path, revision, trust",
        ),
        ("dpo", "sync_ref_model=true", "for a new reference in each round, use stages of a pipeline."),
        ("dpo", "ref_model_mixup_alpha=0.6", "for a new reference in each round, use stages of a pipeline."),
        ("dpo", "f_divergence_type=js_divergence", "algorithm.divergence here (reverse_kl, forward_kl, jensen_shannon"),
        ("dpo", "ld_alpha=0.5", "Set algorithm.tail_weight = 0.5."),
        ("dpo", "use_weighting=true", "WPO's weights are not offered."),
        ("dpo", "loss_weights=[1, 2]", "A run has one loss; rpo, dpop and cpo add a likelihood term"),
        ("discopop", "discopop_tau=0.1", "Set algorithm.tau = 0.1."),
        ("rpo", "rpo_alpha=0.5", "Set algorithm.alpha = 0.5."),
        ("cpo", "cpo_alpha=0.5", "Set algorithm.alpha = 0.5."),
        ("mpo", "cpo_alpha=0.5", "Set algorithm.alpha = 0.5."),
        (
            "simpo",
            "cpo_alpha=0.5",
            "(a setting of rpo, dpop, cpo and mpo); here it means something else. Leave it out.",
        ),
        ("dpo", "rpo_alpha=0.5", "(a setting of rpo, dpop, cpo and mpo); here it means something else. Leave it out."),
        ("dpo", "nll_loss_coef=0.5", "(a setting of rpo); here it means something else. Leave it out."),
        ("ipo", "discopop_tau=0.5", "(a setting of discopop); here it means something else. Leave it out."),
        (
            "simpo",
            "simpo_gamma=1.5",
            "algorithm.gamma here (a setting of simpo, where gamma_beta_ratio is the paper's)",
        ),
        ("kto", "desirable_weight=1.2", "Set algorithm.desirable_weight = 1.2."),
        ("kto", "train_sampling_strategy=sequential", "Rows are always shuffled, by seed."),
        (
            "orpo",
            "generate_during_eval=true",
            "Runs on given answers are also measured on given answers; posttrain eval samples.",
        ),
        ("sft", "packing=true", "Rows are always packed, without padding tokens."),
        ("sft", "padding_free=true", "Rows are always packed, without padding tokens."),
        ("sft", "completion_only_loss=true", "Rows with a prompt and a completion train only the completion; rows of"),
        (
            "sft",
            "assistant_only_loss=true",
            "Conversations always train only the assistant's turns; data.train_on = last",
        ),
        ("sft", "neftune_noise_alpha=5", "No noise is added to embeddings"),
        (
            "sft",
            "dataset_text_field=text",
            "Columns are recognised automatically; posttrain data check shows how they are read",
        ),
        ("sft", "chat_template_path=a.jinja", "Set model.chat_template = a.jinja."),
        ("sft", "num_train_epochs=3", "posttrain counts optimizer steps"),
        ("sft", "per_device_train_batch_size=8", "posttrain has no device batch size"),
        ("reward_model", "center_rewards_coefficient=0.01", "Set algorithm.center_coef = 0.01."),
        ("process_reward_model", "step_separator=x", "Set algorithm.separator = x."),
        # OpenRLHF
        ("dpo", "ref_pretrain=m", "OpenRLHF's ref_pretrain is reference.path here. Set reference.path = m."),
        ("dpo", "ref_offload=true", "No reference model is in memory during training on given answers."),
        ("dpo", "ipo=true", "is algorithm.name here (ipo; the preset openrlhf-ipo sums the log-ratios"),
        ("rpo", "nll_loss_coef=0.1", "Set algorithm.alpha = 0.1."),
        ("dpo", "max_len=2048", "Set data.max_length = 2048."),
        (
            "dpo",
            "chosen_key=better",
            "Columns are recognised automatically; posttrain data check shows how they are read",
        ),
        ("dpo", "max_epochs=1", "for given answers set train.steps"),
        ("dpo", "train_batch_size=128", "for given answers it is train.prompts_per_step"),
        (
            "sft",
            "multiturn=true",
            "Conversations train every answer, or only the last one with data.train_on = last",
        ),
        ("reward_model", "margin_loss=true", "algorithm.margin here (data for true; a setting of reward_model)."),
    ],
)
def test_a_name_of_offline_training_leads_to_the_setting_of_the_chosen_algorithm(algorithm, override, hint):
    config = {"model": "m", "algorithm": algorithm, "data": {"train": "d.jsonl"}, "train": {"steps": 3}}
    message = refusal(config, override)
    assert message.startswith(f"{override.partition('=')[0]} = ")
    assert hint in message


def test_all_unknown_keys_are_reported_at_once_with_their_full_paths():
    theirs = {"actor_rollout_ref": {"rollout": {"n": 5}, "actor": {"clip_ratio_low": 0.2}}, "trainer": {"save_freq": 5}}
    message = refusal(MINIMAL | theirs, "sampling.max_tokens=9", "seed=x")
    assert message.startswith("5 problems in the configuration\n  1. ")
    for path in ("actor_rollout_ref.rollout.n", "actor_rollout_ref.actor.clip_ratio_low", "trainer.save_freq"):
        assert f"{path} = " in message
    assert "sampling.max_tokens = 9 is not a setting (argument sampling.max_tokens=9)" in message
    assert "seed = x (argument seed=x); allowed: an integer from 0 to 9223372036854775807." in message


def test_a_file_of_another_library_is_not_also_told_that_our_keys_are_missing():
    message = refusal({"model_name_or_path": "m", "dataset_name": "d", "loss_type": "grpo", "max_steps": 5})
    assert "4 problems" in message
    assert "missing" not in message


def test_hundreds_of_unknown_keys_are_counted():
    message = refusal(MINIMAL | {f"zebra_{i}": i for i in range(100)})
    assert message.startswith("100 problems")
    assert message.endswith("... and 80 more.")


def test_a_dotted_key_in_a_file_is_shown_as_two_levels():
    assert "Write it as two levels: sampling: {group_size: 4}." in refusal(MINIMAL | {"sampling.group_size": 4})


def test_the_file_and_the_line_are_named_in_the_message(tmp_path):
    path, line = write(tmp_path, YAML + "sead: 3\n"), YAML.count("\n") + 1
    assert refusal(path).startswith(f"sead = 3 is not a setting ({path}, line {line})\n  Did you mean seed?")


def test_every_foreign_name_leads_to_a_setting_that_exists():
    known = {*setting_names(), *(name.rpartition(".")[0] for name in setting_names())}
    for names in foreign_names().values():
        for name, entry in names.items():
            keys = entry.choices if isinstance(entry, ByAlgorithm) else [entry.key] if isinstance(entry, Ours) else []
            assert set(keys) <= known, name
            assert name not in known, f"{name} is one of ours"


def test_an_error_in_python_names_the_same_setting_as_one_of_a_config():
    for theirs, ours in OF_OTHERS.items():
        assert f"algorithm.{ours}" in suggest(theirs, "1", setting_names(), {f"algorithm.{ours}"}).text


def test_every_foreign_value_leads_to_one_that_exists():
    names, corrections = (foreign_values()[f"algorithm.{key}"] for key in ("name", "correction"))
    for theirs, ours in names.items():
        assert re.split("[ ,]", ours)[0] in ALGORITHMS, theirs
        assert theirs not in ALGORITHMS
    for theirs, ours in corrections.items():
        given = yaml.safe_load(ours.partition(", with")[0])
        assert theirs not in NAMED
        assert given in {"none", *NAMED} if isinstance(given, str) else Correction(**given), theirs


@catalogue(
    "algorithm, said",
    [
        ("optimal_token_baseline", "Here that is policy_gradient with baseline = optimal_token, normalisation = none"),
        ("geo_mean", "Here that is gmpo."),
        ({"name": "grpo", "correction": "decoupled_token_icepop"}, "Here that is icepop."),
        ({"name": "grpo", "correction": "decoupled_k3_rs"}, "{action: reject, score: mean_k3, high: 0.01}."),
        ({"name": "dro", "dro_beta": 0.5}, "verl's dro_beta is algorithm.tau here .*Set algorithm.tau = 0.5"),
        ("my_grpo", r"ALGORITHMS\['my_grpo'\] = its class first.*entry point of the group posttrain.algorithms"),
        ("shaped", r"ALGORITHMS\['shaped'\] = its class first.*entry point of the group posttrain.algorithms"),
    ],
)
def test_names_of_peers_and_of_algorithms_from_elsewhere_lead_somewhere(algorithm, said):
    assert re.search(said, refusal(MINIMAL | {"algorithm": algorithm}))


# --- rules that span parts --------------------------------------------------------------------------------------------

BROKEN = {
    "_group_is_large_enough": (
        ["sampling.group_size=1"],
        "sampling.group_size = 1, but grpo compares completions of the same prompt and needs at least 2; "
        "allowed: an integer of at least 2.\n"
        "  Set sampling.group_size = 8, or use algorithm.name = reinforce, which needs no group.",
    ),
    "_turns_are_used": (
        ["environment.attempts=2"],
        "environment.attempts = 2, but each answer has one turn: there is no environment, no tool and no agent; "
        "allowed: environment.function, tools or agent.function.\n",
    ),
    "_stale_turns_have_no_credit_of_their_own": (
        [
            "environment=env.py:Game",
            "environment.credit=turn",
            "rollout.engines=2",
            "train.run_ahead=2",
            "train.max_staleness=8",
        ],
        "environment.credit = turn with train.run_ahead = 2: turns that are too old to be trained would be missing "
        "where turns are counted and compared; allowed: environment.credit = trajectory, or train.run_ahead = 0.\n",
    ),
    "_agents_stand_alone": (
        ["agent=my_agent.py:run", "tools=calculator"],
        "tools with an agent, which answers turns and calls tools itself; allowed: an agent, or an environment "
        "and tools.",
    ),
    "_environments_give_rewards": (
        ["rewards=[environment]", "tools=calculator"],
        "a reward named environment, but there is no environment to give it; allowed: environment.function.",
    ),
    "_tasks_are_those_that_are_played": (
        [
            "environment={function: verifiers:wordle, settings: {taskset: {length: 4}}}",
            "data.train=task:verifiers/wordle",
        ],
        "environment.settings.taskset with the rows of task:verifiers/wordle, which are the default ones; allowed: "
        "rows that were made with these settings.",
    ),
    "_turns_have_credit": (
        ["algorithm=gspo", "tools=calculator", "environment.credit=turn"],
        "credit by turn, but gspo as configured has one advantage for a whole completion; allowed: grpo, rloo, dapo, "
        "ppo or reinforce_plus_plus, for example.\n  Set environment.credit = trajectory, or choose another algorithm.",
    ),
    "_there_is_a_reward": (
        ["rewards=[]"],
        "rewards is empty, but grpo learns from rewards; allowed: at least one reward",
    ),
    "_rewards_are_used": (
        ["algorithm=sft"],
        "rewards = exact_match, but sft learns from examples and would never call them; allowed: no rewards.",
    ),
    "_the_check_has_answers": (
        ["algorithm=reward_model", "rewards=[]", "check=[{name: repetition}]"],
        "check = repetition, but reward_model trains a model that scores and writes no answers; allowed: no check.",
    ),
    "_pairs_can_be_sampled": (
        ["sampled_pairs={}"],
        "the section sampled_pairs, but grpo does not train a policy on pairs; allowed: an algorithm that learns from",
    ),
    "_whole_distribution": (
        ["sampling.top_p=0.9", "sampling.top_k=50", "sampling.min_p=0.1"],
        "sampling.top_p = 0.9, sampling.top_k = 50, sampling.min_p = 0.1 in training: the trainer scores tokens under "
        "the full distribution, so the ratios to a truncated one would be wrong; "
        "allowed: top_p = 1, top_k = 0, min_p = 0.",
    ),
    "_training_explores": (
        ["sampling.temperature=0"],
        "sampling.temperature = 0 in training: all completions of a prompt",
    ),
    "_evaluation_samples_differ": (
        ["evaluation.temperature=0"],
        "evaluation.temperature = 0 with evaluation.samples = 4: all would be greedy answers",
    ),
    "_asynchrony_has_engines": (
        ["train.max_staleness=1"],
        "train.max_staleness = 1, but the trainer's own process samples, and it cannot sample while it trains; "
        "allowed: 0, or engines in their own processes.\n  Set rollout.engines = 1, or train.max_staleness = 0.",
    ),
    "_staleness_covers_the_lead": (
        ["rollout.engines=1", "train.run_ahead=2", "train.max_staleness=1"],
        "train.run_ahead = 2 with train.max_staleness = 1: most tokens that are sampled ahead would be too old to be "
        "trained; allowed: train.max_staleness of at least 2.\n  Set train.max_staleness = 8, or lower "
        "train.run_ahead.",
    ),
    "_engines_have_prompts": (
        ["algorithm=dpo", "rewards=[]", "rollout.engines=1"],
        "dpo learns from examples and samples nothing, but rollout asks for 1 engine(s); allowed: ",
    ),
    "_stale_data_is_corrected": (
        ["rollout.engines=1", "train.run_ahead=2", "train.max_staleness=8", "algorithm.correction=none"],
        "train.run_ahead = 2 without a correction: tokens of older policies would be trained as if the "
        "current policy had sampled them",
    ),
    "_engines_that_are_not_ahead_are_fresh": (
        ["rollout.engines=1", "train.publish_every=2"],
        "train.publish_every = 2 with rollout.engines = 1 and train.run_ahead = 0: a resumed run would sample with "
        "newer weights than an uninterrupted run",
    ),
    "_servers_are_vllm": (
        ["rollout.url=[http://127.0.0.1:8000]"],
        "rollout.url = http://127.0.0.1:8000 with rollout.engine = local, which uses no server; allowed: "
        "rollout.engine "
        "= vllm.",
    ),
    "_the_cluster_has_something_to_hold": (
        ["cluster=ray"],
        "cluster with rollout.engines = 0 and train.devices = 1: nothing would run on the cluster; allowed: at "
        "least one "
        "engine, of an algorithm that samples, or at least two devices.",
    ),
    "_the_run_has_a_folder": (
        ["output=https://host/runs/first"],
        "output = https://host/runs/first: https:// is not a storage for runs; allowed: a folder, or a URL that "
        "begins with s3://, gs://, az://, file://.",
    ),
    "_shared_gpus_are_used_in_turns": (
        ["rollout={engine: vllm, placement: shared, engines: 2}"],
        "rollout.placement = shared with 2 servers: only one server can share the GPU, and it sleeps while a "
        "step is trained; allowed: one server and train.run_ahead = 0, or rollout.placement = beside.",
    ),
    "_the_policy_judges_in_turns": (
        [
            'rewards=[{"judge": {"model": "policy", "mode": "score"}}]',
            "rollout.engines=1",
            "train.run_ahead=2",
            "train.max_staleness=8",
        ],
        "train.run_ahead = 2, but rewards.0.judge is the policy itself, whose weights would change while it judges; "
        "allowed: train.run_ahead = 0, or another judge.",
    ),
    "_ranks_do_what_was_tried_over_ranks": (
        ["train.devices=2", "train.optimizer=adamw_8bit"],
        "train.optimizer = adamw_8bit with train.devices = 2; allowed: train.optimizer = adamw on several devices.",
    ),
    "_matrices_are_divided_where_that_was_shown": (
        ["train.devices=6", "train.tensor=4"],
        "train.tensor = 4 with train.devices = 6; allowed: a divisor of 6: this many devices divide each matrix.\n"
        "  Set train.tensor = 2, or take a multiple of 4 devices.",
    ),
    "_parts_are_of_several_ranks": (
        ["train.devices=6", "train.shard=4"],
        "train.shard = 4 with train.devices = 6; allowed: auto, or a divisor of 6: each copy of the weights lies on as "
        "many devices.\n  Set train.shard = 3, or take a multiple of 4 devices.",
    ),
    "_what_is_compiled_runs_once": (
        ["train={compile: true, gradient_checkpointing: true}"],
        "train.compile = true with train.gradient_checkpointing = true, whose layers are not compiled",
    ),
    "_minibatches_have_rows": (
        ["train.minibatches=129"],
        "train.minibatches = 129, but a step has 128 rows (16 prompts x 8 completions); "
        "allowed: an integer from 1 to 128.",
    ),
    "_updates_have_a_reference_point": (
        ["algorithm=kto", "rewards=[]", "train.prompts_per_step=7", "train.minibatches=4"],
        "train.prompts_per_step = 7 in train.minibatches = 4: kto compares each row of an update with answers to other "
        "prompts, but some updates would have only one row; allowed: at least 2 rows per update",
    ),
    "_warm_up_ends": (["train.warmup_steps=4"], "train.warmup_steps = 4, but the run has only train.steps = 3"),
    "_schedule_has_an_end": (
        ["train.min_learning_rate_ratio=0.1"],
        "train.min_learning_rate_ratio = 0.1 does nothing under a constant schedule",
    ),
    "_labels_differ": (
        ["rewards=[{name: math}, {function: a.py:math}]"],
        "two entries of rewards are called math: one would hide the other in the metrics; "
        "allowed: a name for each.\n  Set rewards.1.label = math_2, for example.",
    ),
    "_gates_lead_to_rewards": (
        ["rewards=[{name: math}, {name: format, gate: maths}]"],
        'the gate of "format" is "maths", and no reward is called that; did you mean "math"?; allowed: math.\n'
        "  Name another reward by its label",
    ),
    "_stale_data_is_sampled": (
        ["algorithm=sft", "rewards=[]", "train.publish_every=2"],
        "train.publish_every = 2, but sft learns from examples and samples nothing; allowed: 1, or an algorithm that",
    ),
    "_steps_that_are_balanced_are_sampled": (
        ["algorithm=sft", "rewards=[]", "data.stratify=answer"],
        "data.stratify = answer, but sft learns from examples and samples nothing; allowed: an algorithm that samples",
    ),
    "_rounds_are_used": (
        ["train.max_sampling_rounds=3"],
        "train.max_sampling_rounds = 3, but grpo as configured trains on the groups of the first round, with signal or "
        "without; allowed: an algorithm with dynamic sampling.",
    ),
    "_reference_is_used": (
        ["reference=larger"],
        "reference = larger, but grpo with these settings never uses it; allowed: an algorithm that keeps the policy "
        "close",
    ),
    "_teacher_is_there": (
        ["teacher=larger"],
        "teacher = larger, but grpo with these settings never uses it; allowed: no teacher, or an algorithm that "
        "learns from",
    ),
    "_critic_is_used": (
        ["critic={}"],
        "the section critic, but grpo as configured has none; allowed: an algorithm with a critic.\n  Set",
    ),
    "_critic_has_its_settings": (
        ["algorithm=ppo", "critic={path: larger, kind: shared}"],
        "critic.path = larger, but the critic is of kind shared; allowed: critic.kind = separate.\n  Set critic.kind",
    ),
    "_critic_warms_up_in_time": (
        ["algorithm=ppo", "critic={warmup_steps: 3}"],
        "critic.warmup_steps = 3 of train.steps = 3: the policy would never learn; allowed: an integer from 0 to 2.",
    ),
    "_auxiliary_data_is_there": (
        ["data.auxiliary=texts.jsonl"],
        "data.auxiliary, but grpo as configured learns from its own rows alone; allowed: an algorithm that adds",
    ),
    "_reward_model_is_used": (
        ["rewards=[{model: reward_model}]"],
        "rewards.0.model = reward_model, but there is no section reward_model to train it; allowed: the section, or "
        "the folder of a reward model.",
    ),
    "_reward_model_can_be_trained": (
        ["rewards=[{model: reward_model}]", "reward_model={data: {train: p}, train: {steps: 3, warmup_steps: 4}}"],
        "reward_model: train.warmup_steps = 4, but the run has only train.steps = 3",
    ),
    "_judges_have_something_to_compare": (
        ["check=[{judge: {model: policy}}]"],
        "check.0.judge compares the answers of a group, and a check sees one answer per prompt",
    ),
    "_forgetting_needs_language": (
        ["algorithm=reward_model", "rewards=[]", "evaluation.forgetting=text.txt"],
        "evaluation.forgetting = 'text.txt', but reward_model trains a model that scores and predicts no text",
    ),
    "_alarms_are_used": (
        ["alarms.cusum_limit=12"],
        "alarms.cusum_limit = 12.0, but there is no check: it does nothing; allowed: settings of alarms that have "
        "something to watch.\n  Set check = [{function: my_check.py:score}], or leave it out.",
    ),
}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algorithm=sft", "rewards=[]", "alarms.on_alarm=stop"], "alarms.on_alarm = stop, but sft learns from no rew"),
        (["alarms={heldout_z: 5, heldout_window: 2}"], "alarms.heldout_window = 2, alarms.heldout_z = 5.0, but evalua"),
        (["train.steps=9", "alarms.reference_steps=6"], "alarms.reference_steps = 6, but train.steps = 9 leave no la"),
    ],
)
def test_a_setting_of_alarms_has_something_to_watch(overrides, message):
    with pytest.raises(ConfigError) as caught:
        check(load(*overrides))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["critic={kind: lora}"], "critic.kind = lora, but the policy has no adapters"),
        (["critic={rank: 4}"], "critic.rank = 4, but the critic is of kind separate; allowed: critic.kind = lora"),
        (["critic={path: larger}", "lora={}"], "critic.path = larger, but the critic is of kind lora"),
    ],
)
def test_a_critic_of_another_kind_has_no_such_setting(overrides, message):
    with pytest.raises(ConfigError, match=message):
        check(load("algorithm=ppo", *overrides))


def test_a_resolved_config_with_a_critic_can_be_loaded_again():
    """It names every setting, and the settings of other kinds with their defaults."""
    check(load("algorithm=ppo", "critic={kind: shared, path: null, rank: 16, alpha: 32}"))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["rollout.placement=beside"], "rollout.placement = beside with rollout.engine = local, which has no server"),
        (
            ["rollout={engine: vllm, placement: shared}", "train.run_ahead=1", "train.max_staleness=8"],
            "rollout.placement = shared with train.run_ahead = 1: only one server can share the GPU",
        ),
    ],
)
def test_a_gpu_is_shared_by_one_server_of_a_synchronous_run(overrides, message):
    with pytest.raises(ConfigError, match=message):
        check(load(*overrides))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["cluster=ray", "rollout={engine: vllm, engines: 2}"],
            "cluster with rollout.engine = vllm, which is started on the trainer's machine; allowed: rollout"
            ".engine = local.",
        ),
        (
            ["cluster=ray", "train.devices=auto"],
            "cluster with train.devices = auto: a cluster says how many GPUs it has",
        ),
        (["cluster=a/b", "rollout.engines=1"], "cluster.address = 'a/b'"),
        (["cluster=http://head:8265", "rollout.engines=1"], "cluster.address = 'http://head:8265'"),
    ],
)
def test_a_cluster_is_a_ray_cluster_that_holds_local_engines(overrides, message):
    with pytest.raises(ConfigError, match=message):
        check(load(*overrides))


@pytest.mark.parametrize("given", ["ray", "auto", "{address: ray}", "{}"])
def test_a_cluster_without_an_address_is_the_one_of_this_machine(given):
    assert load(f"cluster={given}", "rollout.engines=1").cluster.address == "auto"


def test_each_rule_has_its_case():
    assert set(BROKEN) == {rule.__name__ for rule in RULES}


@catalogue("rule", BROKEN)
def test_a_broken_rule_is_told_with_given_allowed_and_fix(rule):
    overrides, message = BROKEN[rule]
    with pytest.raises(ConfigError) as caught:
        check(load(*overrides))
    assert str(caught.value).startswith(message)
    assert caught.value.allowed
    assert caught.value.fix


def test_the_group_that_an_algorithm_needs_follows_from_its_settings():
    message = refusal(MINIMAL, "algorithm=pass_at_k", "algorithm.k=16", "sampling.group_size=8")
    assert message.startswith(
        "sampling.group_size = 8, but pass_at_k compares completions of the same prompt and needs at"
    )
    assert "Set sampling.group_size = 17" in message


def test_all_broken_rules_are_told_at_once():
    message = refusal(MINIMAL, "sampling.group_size=1", "train.warmup_steps=4", "train.max_staleness=2")
    assert message.startswith("3 problems in the configuration")


@catalogue(
    "overrides",
    [
        ["algorithm=reinforce", "sampling.group_size=1"],
        ["algorithm=sft", "rewards=[]", "sampling.group_size=1", "sampling.temperature=0", "sampling.top_p=0.9"],
        ["algorithm=distillation", "teacher=a", "rewards=[]", "sampling.group_size=1"],
        ["algorithm=pass_at_k", "algorithm.k=7", "sampling.group_size=8"],
        ["evaluation.temperature=0", "evaluation.samples=0"],
        ["evaluation.samples=1"],
        ["train.warmup_steps=3"],
        ["train.minibatches=128"],
        ["algorithm=kto", "rewards=[]", "train.prompts_per_step=8", "train.minibatches=4"],
        ["train.min_learning_rate_ratio=0.1", "train.schedule=cosine"],
        ["rewards=[{name: math}]", "check=[{name: math}]"],
        ["rewards=[{name: math}, {name: math, label: again}]"],
        ["data.eval_fraction=0.1"],
        ["alarms={enabled: false, cusum_limit: 12}"],
        ["alarms={on_alarm: stop}"],
    ],
)
def test_what_is_allowed_passes(overrides):
    check(load(*overrides))


@catalogue("name", ALGORITHMS)
def test_every_algorithm_can_be_named_with_nothing_else(name):
    config = load(f"algorithm={name}")
    assert config.algorithm.build().key == name


# --- presets ----------------------------------------------------------------------------------------------------------


@catalogue("name", PRESETS)
def test_a_preset_consists_of_settings(name):
    config = load_config(beside(name) | {"train": {"steps": 1}}).config
    check(config)


def beside(preset: str) -> dict:
    """Return a configuration without the parts that the preset gives: the training, and its algorithm if it has one."""
    covered = {"train", *PRESETS[preset]}
    name = PRESETS[preset].get("algorithm", {}).get("name", "grpo")
    if ALGORITHMS[name].data_kind != "prompts":
        covered.add("rewards")  # rewards would never be called
    return {k: v for k, v in MINIMAL.items() if k not in covered} | {"preset": preset}


def test_the_meaning_of_a_preset_is_pinned():
    """A preset's meaning never changes. A different meaning needs a new name."""
    smoke = load_config({k: v for k, v in MINIMAL.items() if k != "train"}, ["preset=smoke"])
    assert {key: value for key, value in _leaves(smoke) if smoke.origins[key] == "preset:smoke"} == {
        "sampling.group_size": 2,
        "sampling.max_completion_length": 16,
        "train.steps": 2,
        "train.prompts_per_step": 2,
        "evaluation.prompts": 8,
        "evaluation.samples": 2,
        "checkpoint.every": 1,
    }
    safe = load_config(MINIMAL, ["preset=safe"])
    assert {key: value for key, value in _leaves(safe) if safe.origins[key] == "preset:safe"} == {
        "alarms.on_alarm": "stop",
        "evaluation.every": 20,
        "checkpoint.every": 20,
        "checkpoint.keep": 5,
    }
    parity = {"trl-grpo", "trl-dapo", "trl-rloo", "verl-grpo", "verl-otb", "openrlhf-group-norm"}
    parity |= {
        "openrlhf-reinforce",
        "openrlhf-reinforce-clipped",
        "areal-decoupled",
        "areal-decoupled-clipped",
        "trl-dpo",
        "trl-ipo",
        "openrlhf-ipo",
        "trl-kto",
        "trl-orpo",
        "trl-simpo",
    }
    assert set(PRESETS) == {"smoke", "safe", *parity}  # tests/algorithms/test_presets.py checks their numbers


@catalogue("name", [name for name, preset in PRESETS.items() if "algorithm" in preset])
def test_a_preset_with_an_algorithm_does_not_mix_with_another_one(name):
    mixed = beside(name) | {"algorithm": "grpo", "train": {"steps": 1}}
    own = dict(PRESETS[name]["algorithm"])
    assert refusal(mixed).startswith(
        f"preset {name} stands for algorithm {own.pop('name')} with settings of its own, but the configuration names"
    )
    assert "Remove one of the two" in refusal(mixed)
    changed, kept = ("kl_coef", "clip_low") if "kl_coef" in own else (next(iter(own)), list(own)[-1])
    resolved = load_config(beside(name) | {"train": {"steps": 1}}, [f"algorithm.{changed}=0.07"])
    assert resolved.config.algorithm.settings[changed] == 0.07
    assert resolved.origins[f"algorithm.{changed}"] == "command line"
    assert kept == changed or resolved.origins[f"algorithm.{kept}"] == f"preset:{name}"


def test_a_correction_is_saved_and_changed_in_part(tmp_path):
    given = MINIMAL | {"algorithm": {"name": "grpo", "correction": "seq_tis"}}
    named = load_config(given)
    assert named.config.algorithm.settings["correction"] == "seq_tis"
    changed = load_config(given, ["algorithm.correction.high=3"])
    correction = changed.config.algorithm.settings["correction"]
    assert (correction["level"], correction["action"], correction["high"]) == ("sequence", "truncate", 3.0)
    assert changed.origins["algorithm.correction.high"] == "command line"
    assert changed.origins["algorithm.correction.level"] == "caller"
    for number, resolved in enumerate((named, changed)):
        path = tmp_path / f"{number}.yaml"
        path.write_text(to_yaml(resolved))
        assert load_config(path).config == resolved.config


def _leaves(resolved):
    from posttrain.config.text import dotted, leaves

    return [(dotted(path), value) for path, value in leaves(resolved.config.model_dump())]


def test_a_file_goes_before_its_preset():
    resolved = load_config(MINIMAL | {"preset": "smoke"})
    assert resolved.config.train.steps == 3
    assert resolved.config.train.prompts_per_step == 2
    assert resolved.origins["train.prompts_per_step"] == "preset:smoke"


def test_a_preset_on_the_command_line_never_silently_does_nothing():
    message = refusal(MINIMAL, "preset=smoke")
    assert message.startswith("preset=smoke, but the file takes precedence over it and gives train.steps; allowed")
    assert message.endswith("Give the values themselves: train.steps=2")


def test_an_unknown_preset_is_refused():
    assert refusal(MINIMAL, "preset=smoek") == f"preset = smoek; allowed: {', '.join(PRESETS)}.\n  Did you mean smoke?"
    assert refusal(MINIMAL, "preset=[smoke]").startswith("preset = [smoke]; allowed: smoke, safe, trl-grpo")


def test_no_preset_can_be_asked_for():
    assert load_config(MINIMAL | {"preset": "smoke"}, ["preset=null"]).config == load()


def test_a_preset_cannot_be_changed():
    with pytest.raises(TypeError):
        PRESETS["smoke"]["train"]["steps"] = 3  # pyright: ignore


# --- saving -----------------------------------------------------------------------------------------------------------

names = st.text("abcdefgh_", min_size=1, max_size=5)
SCORER = {
    "timeout": st.floats(0.1, 99),
    "label": st.none() | plain_text.filter(bool),
    "settings": st.dictionaries(plain_text, integers | st.booleans() | st.lists(integers), max_size=3),
}
reward_dicts = st.fixed_dictionaries({"name": names}, optional={"weight": st.floats(-5, 5), **SCORER})
check_dicts = st.fixed_dictionaries({"name": names}, optional=SCORER)
run_dicts = st.fixed_dictionaries(
    {
        "model": plain_text.filter(bool),
        "algorithm": st.sampled_from([*ALGORITHMS, {"name": "grpo", "clip_high": 0.28, "dual_clip": 3}]),
        "data": st.fixed_dictionaries(
            {"train": names | st.lists(plain_text.filter(bool), max_size=3)},
            optional={"system_prompt": plain_text, "chat": st.sampled_from(["auto", True, False])},
        ),
        "train": st.fixed_dictionaries(
            {"steps": st.integers(1, 10**9)},
            optional={"learning_rate": st.floats(0, 1), "adam_eps": st.floats(1e-12, 1)},
        ),
    },
    optional={
        "rewards": st.lists(reward_dicts, max_size=3),
        "check": st.lists(check_dicts, max_size=2),
        "lora": st.none() | st.fixed_dictionaries({}, optional={"target_modules": st.lists(names, min_size=1)}),
        "sampling": st.fixed_dictionaries({}, optional={"stop": st.lists(plain_text.filter(bool))}),
        "output": st.none() | plain_text.filter(bool),
        "seed": st.integers(0, 2**63 - 1),
    },
)


@QUICK
@given(source=run_dicts)
def test_a_saved_config_loads_back_to_the_same(source, tmp_path):
    resolved = load_config(source)
    path = write(tmp_path, to_yaml(resolved))
    again = load_config(path)
    assert again.config == resolved.config
    assert set(again.origins.values()) == {f"file:{path}"}
    assert again.origins.keys() == resolved.origins.keys()


def test_the_origin_of_each_value_stands_behind_it(tmp_path):
    path = write(tmp_path, YAML)
    text = to_yaml(load_config(path, ["rewards.1.weight=0.2"]))
    lines = [line.strip() for line in text.splitlines()]
    assert f"path: Qwen/Qwen3-0.6B  # file:{path}" in lines
    assert "weight: 0.2  # command line" in lines
    assert "seed: 0  # default" in lines
    assert "learning_rate: 1.0e-06  # file:" in text
    assert "clip_low: 0.2  # default" in lines
    assert all("  # " in line for line in lines[1:] if not line.endswith(":"))


SECRETS = [
    ("api_key", "abc-as-a-key"),
    ("OPENAI_API_KEY", "another-key"),
    ("apiKey", "a-third-key"),
    ("db-password", "hunter2"),
    ("client_secret", "x y"),
    ("token", "aB3dE5fG7hI9jK1lM3"),
    ("authorization", "Bearer aB3dE5fG7hI9jK1l"),
    ("anything", "hf_aBcDeFgHiJkLmNoPqRsTuVwXyZ"),
    ("anything", "sk-proj-aBcDeFgHiJkLmNoPq"),
]


def test_what_looks_like_a_secret_is_not_saved(tmp_path):
    deep = [{key: value} for key, value in SECRETS]
    text = to_yaml(load_config(MINIMAL | {"rewards": [{"name": "math", "settings": {"deep": deep}}]}))
    assert [value for _, value in SECRETS if value in text] == []
    assert text.count("<redacted>") == len(SECRETS)
    with pytest.raises(ConfigError) as refused:
        load_config(write(tmp_path, text))
    for n, (key, _) in enumerate(SECRETS):
        assert re.search(
            rf"rewards\.0\.settings\.deep\.{n}\.{key}\b.* held a secret, which was not saved", str(refused.value)
        )


def test_what_only_sounds_like_a_secret_is_saved():
    harmless = {"max_tokens": 5, "stop_token": "</answer>", "key": "answer", "url": "https://host/v1", "auth": True}
    assert redact(harmless) == harmless
    assert redact({"url": "https://me:hunter2@host/v1"}) == {"url": "https://<redacted>@host/v1"}


def test_a_secret_does_not_stand_in_an_error_either():
    message = refusal(MINIMAL | {"judge": {"api_key": "hunter2"}})
    assert "hunter2" not in message


# --- documentation ----------------------------------------------------------------------------------------------------


def test_every_setting_is_documented():
    for doc in describe_fields():
        assert doc.doc.endswith("."), doc.path
        assert "plain data" not in doc.type, doc.path


def test_the_description_of_a_field():
    docs = {doc.path: doc for doc in describe_fields()}
    assert docs["train.steps"].required
    assert docs["sampling.group_size"].default == 8
    assert docs["sampling.group_size"].type == "an integer of at least 1"
    assert docs["sampling.group_size"].doc == "Completions per prompt (G)."
    assert docs["lora.rank"].default == 16
    assert {"rewards", "rewards.N.weight", "check.N.name", "model.path", "algorithm.name", "seed"} <= docs.keys()


def test_every_leaf_of_a_config_is_described():
    resolved = load_config(MINIMAL | {"lora": {}, "check": [{"name": "math"}]})
    described = {doc.path.replace(".N.", ".0.") for doc in describe_fields()}
    assert {path for path in resolved.origins if not path.startswith("algorithm.")} <= described


@pytest.mark.parametrize("module", [config_names, config_schema, config_text])
def test_the_examples_in_docstrings_hold(module):
    failed, attempted = doctest.testmod(module)
    assert attempted
    assert not failed


def test_the_reference_page_is_up_to_date():
    page = Path(__file__).parents[2] / "docs" / "config.md"
    assert page.read_text(encoding="utf-8") == config_page(), "run: python -m posttrain.config.page > docs/config.md"


def test_the_json_schema_has_each_algorithm_with_its_settings():
    schema = json_schema()
    names, *objects = schema["$defs"]["AlgorithmConfig"]["anyOf"]
    assert names == {"enum": list(ALGORITHMS)}
    by_name = {o["properties"]["name"]["const"]: o for o in objects}
    assert by_name["grpo"]["properties"]["clip_high"]["default"] == 0.2
    assert by_name["grpo"]["required"] == ["name"]
    assert schema["properties"]["preset"] == {"enum": list(PRESETS)}
    assert schema["required"] == ["model", "algorithm", "data", "train"]
    assert schema["additionalProperties"] is False


ROOT = Path(__file__).resolve().parents[2]
WRITTEN = re.compile(r"```yaml\n(.*?)```", re.DOTALL)


def written_configs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (place, config) of each whole run that the documentation and the recipes show."""
    pages = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if page.stem != "bad-inputs"]
    texts = [(page, text) for page in pages for text in WRITTEN.findall(page.read_text(encoding="utf-8"))]
    texts += [(file, file.read_text(encoding="utf-8")) for file in sorted((ROOT / "recipes").rglob("*.yaml"))]
    for file, text in texts:
        with contextlib.suppress(ConfigError):
            found = read_value(text, str(file))
            if isinstance(found, dict) and {"model", "algorithm", "data", "train"} <= set(found):
                yield f"{file.relative_to(ROOT)}: {text[:60]!r}", found


def test_the_json_schema_accepts_each_config_that_is_written_anywhere():
    jsonschema = pytest.importorskip("jsonschema", reason="the extra schema is not installed")
    schema = jsonschema.Draft202012Validator(json_schema())
    written = list(written_configs())
    assert len(written) > 20
    refused = {
        place: errors for place, config in written if (errors := [e.message for e in schema.iter_errors(config)])
    }
    assert refused == {}
    whole = written[0][1]
    for section, shorthand in {
        "environment": "my_env.py:Game",
        "agent": "my_agent.py:run",
        "cluster": "local",
        "reference": "a/model",
        "teacher": "a/model",
        "rewards": ["math", {"name": "format", "gate": "math"}, {"name": "format", "gate": {"label": "math"}}],
        "check": ["exact_match"],
    }.items():
        assert [e.message for e in schema.iter_errors({**whole, section: shorthand})] == []
    assert list(schema.iter_errors({**whole, "sampling": {"groupsize": 4}}))
    assert list(schema.iter_errors({**whole, "agent": 3}))
