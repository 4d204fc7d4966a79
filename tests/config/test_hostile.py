"""Files and arguments that nobody would write are refused with a readable message, wherever they occur."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.catalogue import examples

from posttrain.config import check, describe_fields, load_config, schema, to_yaml
from posttrain.config.text import MAX_BYTES, read_mapping
from posttrain.errors import ConfigError

MINIMAL = {
    "model": "tiny:copy",
    "algorithm": "grpo",
    "data": {"train": "task:copy"},
    "rewards": [{"name": "exact_match"}],
    "train": {"steps": 3},
}
MANY = 100_000
BOMB = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 40)
)
YAML = {
    "lists in lists": "model: " + "[" * MANY,
    "closed lists in lists": "model: " + "[" * MANY + "]" * MANY,
    "JSON in JSON": '{"a":' * MANY + "1" + "}" * MANY,
    "lists in lists by dashes": "- " * MANY,
    "deeper than any setting": "model: " + "[" * 100 + "]" * 100,
    "aliases of aliases": BOMB,
    "a mapping of aliases": "a: &a {b: 1}\n" + "".join(f"c{n}: &c{n} {{x: *a, y: *a}}\n" for n in range(9_000)),
    "an alias of itself": "model: &a [*a]",
    "a mapping that holds itself": "model: &a {b: *a}",
    "an integer of 5,000 digits": f"seed: {'9' * 5000}",
    "an integer of 4,000 digits": f"seed: {'9' * 4000}",
    "a negative one": f"seed: -{'9' * 5000}",
    "a key of 5,000 digits": f"{'9' * 5000}: 1",
    "half a surrogate pair": 'model: "\\ud800"',
    "the other half, in a key": '"\\udc00": 1',
    "in a reward's settings": 'rewards: [{name: math, settings: {a: ["\\udfff"]}}]',
    "a NUL": "model: a\0b",
    "a date that is none": "model: !!timestamp 2026-99-99",
    "an integer that is none": "model: !!int many",
    "a truth value that is none": "model: !!bool maybe",
    "bytes that are none": "model: !!binary '*'",
    "a Python object": "model: !!python/object/apply:os.system [id]",
    "a set": "model: !!set {a, b}",
    "two documents": "model: a\n---\nmodel: b",
    "too many bytes": "# " + "x" * MAX_BYTES,
}
TOML = {
    "lists in lists": "model = " + "[" * MANY,
    "closed lists in lists": "model = " + "[" * MANY + "]" * MANY,
    "keys of keys": ".".join(["a"] * MANY) + " = 1",
    "tables of tables": f"[{'.'.join(['a'] * MANY)}]",
    "an integer of 5,000 digits": f"seed = {'9' * 5000}",
    "half a surrogate pair": 'model = "\\ud800"',
    "too many values": f"model = [{'1,' * 50_000}]",
}


def refused(*arguments, **named) -> str:
    with pytest.raises(ConfigError) as caught:
        check(load_config(*arguments, **named))
    message = str(caught.value)
    assert len(message) < 3000
    assert message.encode()  # can be printed and saved
    return message


LONG = ("closed lists in lists", "a mapping of aliases")
"""YAML that takes a second or two to refuse, each beside a quicker file that is refused for the same reason."""


@pytest.mark.parametrize("long", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_hostile_files_are_refused_in_words(tmp_path, long):
    few = {name: text for name, text in YAML.items() if (name in LONG) == long}
    for suffix, files in ((".yaml", few), (".toml", {} if long else TOML)):
        for name, text in files.items():
            path = tmp_path / f"run{suffix}"
            path.write_bytes(text.encode())
            assert str(path) in refused(path), name


@pytest.mark.parametrize(
    ("name", "head", "line"),
    [
        ("rows.yaml", "", "row{0}: {0}\n"),
        pytest.param("rows.toml", "", "row{0} = {0}\n", marks=pytest.mark.slow),
        ("grpo.yaml", "algorithm:\n  name: grpo\n", "  row{0}: {0}\n"),
        ("no_algorithm.toml", "", "algorithm.row{0} = {0}\n"),
    ],
    ids=["yaml", "toml", "of an algorithm", "of no algorithm"],
)
def test_a_file_of_a_thousand_unknown_keys_is_refused_and_few_of_them_are_compared(
    tmp_path, monkeypatch, name, head, line
):
    """Such a file is data and no configuration. To compare each key with all settings would take minutes."""
    compared = []
    suggest = schema.suggest
    monkeypatch.setattr(schema, "suggest", lambda *given: compared.append(given) or suggest(*given))
    file = tmp_path / name
    file.write_text(head + "".join(line.format(n) for n in range(1_100)))
    with pytest.raises(ConfigError, match=r"(?s)problems in .*1\. .*20\. .*\.\.\. and \d{4} more\.$"):
        load_config(file)
    assert 20 < len(compared) <= schema.MOST_HINTS


def test_what_is_no_regular_file_is_refused_and_never_waited_for(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe.yaml")
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(tmp_path)
        server.bind("socket.yaml")
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "device.yaml").symlink_to("/dev/zero")
    (tmp_path / "circle.yaml").symlink_to("circle.yaml")
    (tmp_path / "nowhere.yaml").symlink_to("missing")
    for name in ("pipe", "socket", "folder", "device", "circle", "nowhere", "x" * 300):
        assert name in refused(tmp_path / f"{name}.yaml")


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
SETTINGS = [doc.path.replace(".N", ".0") for doc in describe_fields()] + ["algorithm.clip_low", "algorithm.correction"]


@examples(80, 400)
@given(path=st.sampled_from(SETTINGS), value=plain)
def test_any_value_at_any_setting_is_taken_and_saved_or_refused_in_words(path, value):
    with suppress(ConfigError):
        resolved = load_config(MINIMAL, {path: value})
        check(resolved)
        assert to_yaml(resolved).encode()


@pytest.mark.slow
def test_numbers_that_no_tensor_holds_are_refused_at_every_setting_that_is_a_number():
    numeric = [doc for doc in describe_fields() if "a number" in doc.type or "an integer" in doc.type]
    assert len(numeric) > 80
    for doc in numeric:
        path = doc.path.replace(".N", ".0")
        for value in (1e308, -1e308, 10**25, float("inf"), float("nan")):
            assert path.rpartition(".")[2] in refused(MINIMAL, {path: value}), (path, value)
    for path in ("algorithm.clip_low", "algorithm.kl_coef", "algorithm.entropy_coef"):
        for value in (1e308, -1e308, 10**25, float("inf"), float("nan")):
            assert path in refused(MINIMAL, {path: value}), (path, value)


def test_python_values_without_an_end_are_refused():
    endless: dict = {}
    endless["settings"] = endless
    deep: list = []
    for _ in range(MANY):
        deep = [deep]
    for value in (endless, {"settings": deep}):
        refused(MINIMAL | {"rewards": [{"name": "exact_match"} | value]})
        refused(MINIMAL, {"rewards.0.settings": value})


@pytest.mark.slow
def test_hostile_arguments_are_refused_in_words_by_the_process(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(
        "model: tiny:copy\nalgorithm: grpo\ndata: {train: task:copy}\nrewards: [exact_match]\ntrain: {steps: 1}\n"
    )
    deep = "[" * 20_000
    arguments = [
        f"seed={'9' * 5000}",
        f"model={deep}",
        f"{'a.' * 20_000}a=1",
        b"model=\xff\xfe",
        'model="\\ud800"',
        "x\n=1",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "posttrain", "train", path, *arguments], capture_output=True, text=True, errors="replace"
    )
    assert done.returncode == 2
    assert done.stderr.startswith("ConfigError: 6 problems in")
    assert "Traceback" not in done.stderr


def test_a_file_that_changes_while_it_is_read_is_an_error_without_a_line(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("sead: 1")
    given = read_mapping(path)
    path.write_text("[")
    assert "sead = 1 is not a setting" in refused(given, origin=f"file:{path}")
