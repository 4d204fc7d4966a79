"""Reference log-probabilities of given answers: computed once, kept on disk, and no reference model while training."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import re
import shutil
import string
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.catalogue import few
from tests.tiny import tiny_model

import posttrain as pt
from posttrain.algorithms import ALGORITHMS
from posttrain.algorithms.labels import LabelLoss
from posttrain.algorithms.pairs import PairLoss
from posttrain.config import load_config, to_yaml
from posttrain.data.dataset import Sequences
from posttrain.data.order import rows_for_step
from posttrain.errors import ConfigError, DoesNotFit
from posttrain.experience.partners import MismatchedAnswers
from posttrain.experience.references import (
    References,
    read_values,
    reference_logprobs,
    share,
    start_forward,
    used_rows,
    write_values,
)
from posttrain.models.forward import token_logprobs
from posttrain.models.identity import model_key
from posttrain.report.terminal import TerminalView
from posttrain.store.run_store import RunStore
from posttrain.train.loop import train_step
from posttrain.train.run import Run
from posttrain.train.setup import set_up
from posttrain.types import Example, LabelledExample, Pair

STEPS = 4
ROWS = 8
PREFERENCES = [key for key, cls in ALGORITHMS.items() if issubclass(cls, PairLoss | LabelLoss)]
REFERENCE_FREE = [key for key in PREFERENCES if "reference" not in ALGORITHMS[key]().needs]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("preferences")
    tiny_model(folder / "model")
    tiny_model(folder / "other", seed=7)
    dice = random.Random(0)
    rows = []
    for _ in range(24):
        word = "".join(dice.choices(string.ascii_lowercase, k=dice.randint(3, 6)))
        better, worse = "".join(sorted(word)), "".join(sorted(word, reverse=True))
        rows.append({"prompt": word, "chosen": better, "rejected": worse + "z"})
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    labels = [
        {"prompt": row["prompt"], "completion": row[side], "label": side == "chosen"}
        for row in rows
        for side in ("chosen", "rejected")
    ]
    (folder / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in labels))
    return folder


def config_of(folder: Path, algorithm: str, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
    kind = ALGORITHMS[algorithm].data_kind
    return {
        "model": {"path": str(folder / "model"), "device": "cpu"},
        "algorithm": algorithm,
        "data": {"train": str(folder / f"{kind}.jsonl"), "eval_fraction": 0},
        "train": {"steps": STEPS, "prompts_per_step": ROWS, "learning_rate": 1e-3},
        "report": False,
        **(settings or {}),
    }


@pytest.fixture
def start(folder, tmp_path):
    """`start(algorithm, settings)`: a run that is set up in its own folder."""
    with ExitStack() as opened:

        def begin(algorithm: str, settings: Mapping[str, Any] | None = None) -> Run:
            resolved = load_config(config_of(folder, algorithm, settings))
            number = len(list(tmp_path.glob("run-*")))
            store = opened.enter_context(RunStore.create(tmp_path / f"run-{number}", to_yaml(resolved)))
            return set_up(resolved, store, TerminalView(quiet=True), opened)

        yield begin


class Passes:
    """Counts the passes of language models and their tokens, with gradient and without."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.models: set[int] = set()
        self.tokens = {True: 0, False: 0}
        self.computed = 0

        def counted(model, tokens, mask_BT, **settings):
            self.models.add(id(model))
            self.tokens[torch.is_grad_enabled()] += int(tokens.lengths_B.sum())
            return token_logprobs(model, tokens, mask_BT, **settings)

        monkeypatch.setattr("posttrain.models.policy.token_logprobs", counted)

    def watch(self, model: torch.nn.Module) -> None:
        """Count the token ids that reach the model's embedding, which would include padding."""
        embedding = model.get_input_embeddings()  # type: ignore[operator]
        embedding.register_forward_hook(lambda module, args, output: self.add(args[0].numel()))

    def add(self, count: int) -> None:
        self.computed += count


# --- what a step computes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["dpo", "simpo", "ipo", "orpo"])
def test_a_step_computes_no_padding_and_asks_no_reference_model(start, monkeypatch, algorithm):
    run = start(algorithm)
    fed = run.feed.take(1, 0)  # the first pass through a model also decides how it is run
    train_step(run.trainer, fed.experience, 1)
    passes = Passes(monkeypatch)
    passes.watch(run.trainer.loaded.model)
    fed = run.feed.take(2, 1)
    lengths_B = fed.experience.tokens.lengths_B
    assert len(set(lengths_B.tolist())) > 2, "rows of one length would hide padding"
    train_step(run.trainer, fed.experience, 2)
    assert passes.models == {id(run.trainer.loaded.model)}
    assert passes.tokens == {True: int(lengths_B.sum()), False: 0}
    # the last token of a row predicts no trained token, and is left out, too
    assert passes.computed == int(lengths_B.sum()) - 2 * ROWS


@pytest.mark.parametrize("algorithm", ["kto", "bco", "aot"])
def test_what_couples_a_step_costs_one_pass_of_the_policy_and_none_of_a_reference(start, monkeypatch, algorithm):
    run = start(algorithm)
    passes = Passes(monkeypatch)
    fed = run.feed.take(1, 0)
    train_step(run.trainer, fed.experience, 1)
    other = fed.experience.mismatched
    looked_at = fed.experience.tokens if other is None else other.tokens
    assert passes.models == {id(run.trainer.loaded.model)}
    assert passes.tokens == {True: int(fed.experience.tokens.lengths_B.sum()), False: int(looked_at.lengths_B.sum())}


@pytest.mark.parametrize("algorithm", REFERENCE_FREE)
def test_a_method_without_a_reference_scores_nothing_beforehand(start, monkeypatch, algorithm):
    passes = Passes(monkeypatch)
    run = start(algorithm)
    assert passes.models == set()
    assert run.feed.take(1, 0).experience.ref_logprobs_BT is None


@pytest.mark.parametrize("settings", [{}, {"lora": {"rank": 4, "dropout": 0.1}}], ids=["full", "lora"])
def test_there_is_one_model_in_memory(start, settings):
    """No second copy of the weights: every module that computes is the policy's."""
    run = start("dpo", settings)
    assert not any(isinstance(part, torch.nn.Module) for part in vars(run.feed).values())
    forwards = [run.trainer.forward, *(one.forward for one in run.trainer.advantages.refreshes)]
    assert all(getattr(forward, "model", run.trainer.loaded.model) is run.trainer.loaded.model for forward in forwards)


# --- the numbers ------------------------------------------------------------------------------------------------------


def test_the_policy_is_its_own_reference_in_the_first_step(start):
    """RULE 33: log 2, and another number would be dropout, or another truncation or template."""
    run = start("dpo")
    _, log = train_step(run.trainer, run.feed.take(1, 0).experience, 1)
    assert log.reduce()["loss"] == pytest.approx(0.6931471806, abs=1e-6)
    assert log.reduce()["rewards/margins"] == pytest.approx(0, abs=1e-5)


def test_with_lora_the_base_is_the_reference_and_its_numbers_are_those_of_a_full_run(start, monkeypatch):
    """The same file serves both: its name does not depend on the adapters."""
    full = start("dpo").feed.take(1, 0).experience
    passes = Passes(monkeypatch)
    adapted = start("dpo", {"lora": {"rank": 4}}).feed.take(1, 0).experience
    assert passes.models == set()
    torch.testing.assert_close(adapted.ref_logprobs_BT, full.ref_logprobs_BT, rtol=0, atol=0)


def test_each_row_has_its_own_numbers(start):
    run = start("dpo")
    batch = run.feed.take(3, 2).experience
    alone_BT = run.trainer.forward(batch).logprobs_BT.detach()
    torch.testing.assert_close(batch.ref_logprobs_BT, alone_BT, rtol=0, atol=1e-5)
    assert len({round(float(x), 3) for x in alone_BT.sum(-1)}) > ROWS


def test_the_two_answers_to_a_prompt_are_scored_side_by_side():
    """Their common tokens are then computed once. A batch, in contrast, has the chosen answers first."""

    def answer(number: int) -> Example:
        return Example(index=number, input_ids=(1, number), completion_mask=(False, True))

    sides = Sequences([Pair(index=n, chosen=answer(10 * n), rejected=answer(10 * n + 1)) for n in range(4)])
    assert [side.index for side in sides] == [0, 1, 10, 11, 20, 21, 30, 31]
    assert [sides[place].index for place in sides.of([1, 3])] == [10, 11, 30, 31]
    assert [sides[place].index for place in sides.as_batched([3, 1])] == [30, 10, 31, 11]
    assert sides.of(range(4)) == range(8)


def test_another_model_can_be_the_reference(start, folder):
    same, other = (start("dpo", settings) for settings in ({}, {"reference": str(folder / "other")}))
    ours, theirs = (run.feed.take(1, 0).experience.ref_logprobs_BT for run in (same, other))
    assert (ours - theirs).abs().max() > 0.1
    _, log = train_step(other.trainer, other.feed.take(1, 0).experience, 1)
    assert abs(log.reduce()["loss"] - 0.6931471806) > 1e-3


def test_a_reference_that_nobody_asks_is_refused(folder):
    config = config_of(folder, "simpo", {"reference": str(folder / "other")})
    with pytest.raises(ConfigError, match=r"reference = .*, but simpo with these settings never uses it"):
        pt.train(config)


# --- on disk ----------------------------------------------------------------------------------------------------------


def counted(monkeypatch, start, settings: Mapping[str, Any] | None = None, algorithm: str = "dpo") -> int:
    """The number of tokens that are scored while a run is set up."""
    passes = Passes(monkeypatch)
    start(algorithm, settings)
    return passes.tokens[False]


@pytest.fixture
def empty_cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("POSTTRAIN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "references"


def test_a_second_run_on_the_same_data_finds_the_numbers(start, monkeypatch, empty_cache):
    first = counted(monkeypatch, start)
    assert first > 0
    assert counted(monkeypatch, start, {"algorithm": {"name": "dpo", "beta": 0.5}}) == 0
    assert counted(monkeypatch, start, algorithm="ipo") == 0
    assert len(list(empty_cache.glob("*.f32"))) == 1


def test_other_data_or_another_model_is_scored_anew(start, monkeypatch, empty_cache, folder):
    counted(monkeypatch, start)
    data = {"train": str(folder / "pairs.jsonl"), "eval_fraction": 0}
    assert counted(monkeypatch, start, {"data": data | {"max_rows": 23}}) > 0
    assert counted(monkeypatch, start, {"data": data | {"system_prompt": "abc"}}) > 0
    assert counted(monkeypatch, start, {"model": {"path": str(folder / "other"), "device": "cpu"}}) > 0


def test_only_rows_that_the_run_takes_are_scored(start, monkeypatch, empty_cache):
    """One step takes two of the 24 pairs; a longer run scores all pairs that it takes."""
    few = counted(monkeypatch, start, {"train": {"steps": 1, "prompts_per_step": 2, "learning_rate": 1e-3}})
    most = counted(monkeypatch, start, {"train": {"steps": 12, "prompts_per_step": 2, "learning_rate": 1e-3}})
    assert 0 < few < most / 6


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", few(["dpo", "kto"], "kto"))
def test_a_run_that_is_lengthened_when_it_is_resumed_scores_the_new_rows(folder, tmp_path, algorithm):
    """It uses the weights of the start, not of the checkpoint, like a run that had this length from the start."""
    train = {"steps": 3, "prompts_per_step": 2, "learning_rate": 1e-3}
    whole = pt.train(config_of(folder, algorithm, {"train": train}), output=str(tmp_path / "whole"))
    pt.train(config_of(folder, algorithm, {"train": train | {"steps": 1}}), output=str(tmp_path / "short"))
    longer = pt.resume(tmp_path / "short", steps=3)
    assert [m["loss"] for m in longer.metrics] == [m["loss"] for m in whole.metrics]


def test_one_changed_weight_is_another_model(start):
    model = start("dpo").trainer.loaded.model
    before = model_key(model)
    with torch.no_grad():
        next(model.parameters()).view(-1)[17] += 1e-6
    assert model_key(model) != before


@pytest.mark.parametrize("damage", few(["flip", "cut", "unseal", "empty"], "flip", "unseal"))
def test_a_damaged_file_is_computed_again(start, monkeypatch, empty_cache, damage):
    counted(monkeypatch, start)
    (file,) = empty_cache.iterdir()
    content = bytearray(file.read_bytes())
    if damage == "flip":
        content[5] ^= 1
        file.write_bytes(content)
    elif damage == "cut":
        file.write_bytes(content[:-4])
    elif damage == "unseal":
        file.write_bytes(content[:-32] + bytes(32))
    else:
        file.write_bytes(b"")
    assert counted(monkeypatch, start) > 0
    assert counted(monkeypatch, start) == 0


def test_nothing_half_written_is_left_behind(tmp_path):
    def parts():
        yield torch.ones(3).numpy()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_values(tmp_path / "x.f32", parts(), 6)
    assert list(tmp_path.iterdir()) == []
    assert read_values(tmp_path / "x.f32", 6) is None


def test_a_full_disk_is_said_before_anything_is_trained(start, monkeypatch, empty_cache):
    usage = shutil.disk_usage(".")._replace(free=16)
    monkeypatch.setattr("posttrain.experience.references.shutil.disk_usage", lambda path: usage)
    with pytest.raises(DoesNotFit, match=r"reference log-probabilities of [\d,]+ tokens cannot be written") as error:
        start("dpo")
    assert "POSTTRAIN_CACHE" in str(error.value)
    assert error.value.exit_code == 3


def test_a_folder_that_cannot_be_written_is_said(start, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("POSTTRAIN_CACHE", str(tmp_path / "file"))
    with pytest.raises(DoesNotFit, match="cannot be written"):
        start("dpo")


def test_examples_without_a_trained_token_take_no_place(start, empty_cache):
    run = start("simpo")
    forward = start_forward(run.config, run.trainer.loaded, run.trainer.forward)
    examples = [
        Example(index=0, input_ids=(1, 5, 6), completion_mask=(False, True, True)),
        Example(index=1, input_ids=(1, 5), completion_mask=(False, False)),
        Example(index=2, input_ids=(1, 7), completion_mask=(False, True)),
    ]
    found, known = reference_logprobs(run.config, examples, [0, 1, 2], forward, pad_id=0, folder=run.folder)
    assert not known
    assert [len(found[place]) for place in range(3)] == [2, 0, 1]
    again, known = reference_logprobs(run.config, examples, [0, 1, 2], forward, pad_id=0, folder=run.folder)
    assert known
    torch.testing.assert_close(again[2], found[2], rtol=0, atol=0)


@pytest.fixture
def scored(start, empty_cache, monkeypatch):
    """`scored()`: whether a run that is set up now scores anything."""
    return lambda settings=None: counted(monkeypatch, start, settings) > 0


@pytest.mark.slow
def test_what_decides_a_bit_of_the_numbers_has_a_file_of_its_own(scored, folder, monkeypatch):
    """Another packing of the rows, or another attention kernel, changes the last bits."""
    train = {"steps": STEPS, "prompts_per_step": ROWS, "learning_rate": 1e-3}
    model = {"path": str(folder / "model"), "device": "cpu"}
    assert scored()
    assert not scored()
    assert scored({"model": model | {"attention": "eager"}})
    assert not scored({"model": model | {"attention": "sdpa"}})
    assert scored({"train": train | {"tokens_per_microbatch": 100}})
    assert scored({"train": train | {"logprob_chunk_tokens": 7}})
    with monkeypatch.context() as changed:
        changed.setattr("posttrain.models.identity.transformers.__version__", "0.0")
        assert scored()
    with monkeypatch.context() as changed:
        changed.setattr("posttrain.models.identity.code_key", lambda *modules: "edited")
        assert scored()
    assert not scored()


@pytest.mark.slow
def test_a_resumed_run_has_the_numbers_that_it_began_with(folder, tmp_path, monkeypatch, empty_cache):
    """Changes of the cache, of the code and of the packing have no effect: promise 4."""
    whole = pt.train(config_of(folder, "kto"), output=str(tmp_path / "whole"))
    pt.train(config_of(folder, "kto"), output=str(tmp_path / "parts"), checkpoint={"every": 2, "keep": 9})
    shutil.rmtree(empty_cache)
    shutil.rmtree(max((tmp_path / "parts" / "checkpoints").glob("step-*")))
    config = tmp_path / "parts" / "config.yaml"
    config.write_text(re.sub(r"tokens_per_microbatch: \S+", "tokens_per_microbatch: 100", config.read_text()))
    monkeypatch.setattr("posttrain.models.identity.code_key", lambda *modules: "edited")
    monkeypatch.setattr("posttrain.experience.references._score", lambda *args: pytest.fail("scored again"))
    resumed = pt.resume(tmp_path / "parts")
    assert "read from disk" in (resumed.folder / "events.jsonl").read_text()
    assert resumed.metrics[-1]["loss"] == pytest.approx(whole.metrics[-1]["loss"], rel=1e-5)
    kept = [{file.name: file.read_bytes() for file in (run / "references").iterdir()} for run in tmp_path.glob("*/")
            if (run / "references").is_dir() and run.name != "cache"]  # fmt: skip
    assert len(kept) == 2
    assert kept[0] == kept[1]
    assert len(kept[0]) == 2, "answers and mismatched answers"


def test_what_a_run_and_the_cache_keep_is_one_file(start, empty_cache):
    run = start("dpo")
    (ours,), (cached,) = (run.folder / "references").iterdir(), empty_cache.iterdir()
    assert ours.samefile(cached)


def test_where_no_link_can_be_made_a_run_has_a_copy(start, empty_cache, monkeypatch):
    def refuse(*paths):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr("posttrain.experience.references.os.link", refuse)
    run = start("dpo")
    (ours,), (cached,) = (run.folder / "references").iterdir(), empty_cache.iterdir()
    assert not ours.samefile(cached)
    assert ours.read_bytes() == cached.read_bytes()


def test_two_writers_of_one_name_each_have_their_own_numbers(tmp_path):
    """They may have the same process number in two containers; one of the two files remains, complete."""
    file, inner = tmp_path / "x.f32", []

    def parts():
        yield np.full(3, 1.0)
        inner.append(write_values(file, iter([np.full(6, 2.0)]), 6))
        yield np.full(3, 1.0)

    outer = write_values(file, parts(), 6)
    assert outer.tolist() == [1.0] * 6
    assert inner[0].tolist() == [2.0] * 6
    found = read_values(file, 6)
    assert found is not None
    assert found.tolist() == [1.0] * 6
    assert list(tmp_path.iterdir()) == [file]


def test_a_writer_takes_away_what_a_killed_one_left_and_nothing_of_one_that_lives(tmp_path):
    file = tmp_path / "x.f32"
    drafts = {name: tmp_path / f"x.{name}.part" for name in ("killed", "young", "writing")}
    for draft in drafts.values():
        draft.write_bytes(b"half")
    for name in ("killed", "writing"):
        os.utime(drafts[name], (1e9, 1e9))
    with drafts["writing"].open("r+b") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        write_values(file, iter([np.zeros(2)]), 2)
    assert set(tmp_path.iterdir()) == {file, drafts["young"], drafts["writing"]}


def test_sharing_what_is_shared_already_leaves_nothing_behind(tmp_path):
    file, other = tmp_path / "x.f32", tmp_path / "run" / "x.f32"
    write_values(file, iter([np.zeros(2)]), 2)
    for _ in range(2):
        share(file, other, 2)
    assert [path.name for path in other.parent.iterdir()] == ["x.f32"]
    killed = other.with_name("x.killed.part")  # killed while it was copied to another disk
    killed.write_bytes(b"half")
    os.utime(killed, (1e9, 1e9))
    share(file, other, 2)
    assert [path.name for path in other.parent.iterdir()] == ["x.f32"]
    share(tmp_path / "missing.f32", tmp_path / "run" / "y.f32", 2)
    assert not (tmp_path / "run" / "y.f32").exists()


@pytest.mark.parametrize("places", [range(4), [1, 3, 4, 9]])
def test_each_place_has_its_own_numbers_and_another_place_has_none(places):
    counts_N = np.array([1, 0, 2, 1])
    references = References(np.arange(4, dtype=np.float32), places, counts_N)
    assert [references[place].tolist() for place in places] == [[0.0], [], [1.0, 2.0], [3.0]]
    for place in (5, 99, -1):
        with pytest.raises(ValueError, match=str(place)):
            references[place]


def test_used_rows_are_those_of_the_steps(folder):
    settings = {"train": {"steps": 3, "prompts_per_step": 2, "learning_rate": 1e-3}}
    config = load_config(config_of(folder, "dpo", settings)).config
    taken = {row for step in (1, 2, 3) for row in rows_for_step(config.seed, step, 2, 50)}
    assert list(used_rows(config, 50)) == sorted(taken)
    assert used_rows(config, 6) == range(6)


MEASURE = """
import sys, threading, time
from collections.abc import Sequence
from pathlib import Path
import torch
from posttrain.config import load_config
from posttrain.models.compute import Compute
from posttrain.data.dataset import Sequences
from posttrain.experience.references import reference_logprobs
from posttrain.types import Example, Outputs, Pair

class Constant:
    model, temperature, chunk_tokens = torch.nn.Linear(2, 2), 1.0, 64
    compute, compute_dtype = Compute(), torch.float32
    def __call__(self, batch):
        return Outputs(logprobs_BT=-torch.ones(batch.completion_mask_BT.shape))

def anonymous():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1000

def watch():
    while True:
        peak[0] = max(peak[0], anonymous())
        time.sleep(0.005)

def example(n, length):
    mask = (False,) * (length - 2) + (True, True)
    return Example(index=n, input_ids=tuple(range(1000, 1000 + length)), completion_mask=mask)

class Pairs(Sequence):
    record = Pair
    def __init__(self, rows):
        self.rows = rows
    def __len__(self):
        return self.rows
    def __getitem__(self, n):
        return Pair(index=n, chosen=example(n, 400), rejected=example(n, 300), margin=None)

def score(rows):
    pairs = Pairs(rows)
    sides = Sequences(pairs)
    return reference_logprobs(config, sides, sides.of(range(rows)), Constant(), pad_id=0, folder=folder / "run")

folder = Path(sys.argv[1])
config = load_config({"model": "m", "algorithm": "dpo", "data": {"train": "d"}, "train": {"steps": 1}}).config
score(300)  # everything is loaded and warm
start, peak = anonymous(), [0.0]
threading.Thread(target=watch, daemon=True).start()
found, known = score(10_000)
print(len(found), float(found.values.sum()), peak[0] - start)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="memory is read from /proc")
@pytest.mark.slow
def test_memory_stays_bounded_however_many_answers_are_scored(tmp_path):
    """As tuples in memory, the answers of these pairs would take 110 MB."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "POSTTRAIN_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path)], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    rows, total, growth = (float(number) for number in done.stdout.split())
    assert (rows, total) == (20_000, -40_000)
    assert growth < 30


# --- answers of other rows --------------------------------------------------------------------------------------------


def labelled(*rows: tuple[tuple[int, ...], tuple[int, ...]]) -> list[LabelledExample]:
    return [
        LabelledExample(
            index=number,
            label=True,
            example=Example(
                index=number,
                input_ids=(*prompt, *answer),
                completion_mask=(False,) * len(prompt) + (True,) * len(answer),
            ),
        )
        for number, (prompt, answer) in enumerate(rows)
    ]


@pytest.mark.parametrize("seed", range(5))
def test_each_prompt_meets_the_answer_of_a_row_with_another_prompt(seed):
    rows = labelled(((1, 2), (11,)), ((1, 2), (12, 12)), ((1, 3), (13,)), ((1, 4), (14, 14)))
    found = list(MismatchedAnswers(rows, seed=seed, max_length=100))
    assert len(found) == 4
    for own, other in zip(rows, found, strict=True):
        prompt = own.example.input_ids[:2]
        assert other.input_ids[:2] == prompt
        assert other.completion_mask == (False, False, *(True,) * (len(other.input_ids) - 2))
        (source,) = [row for row in rows if row.example.input_ids[2:] == other.input_ids[2:]]
        assert source.example.input_ids[:2] != prompt


def test_a_prompt_without_a_fitting_partner_has_nothing_trained():
    rows = labelled(((1, 2, 3, 4), (11,)), ((1, 5), (12, 12, 12)))
    long, short = MismatchedAnswers(rows, seed=0, max_length=5)
    assert not any(long.completion_mask)
    assert short.input_ids == (1, 5, 11)


def test_the_reference_point_is_0_where_the_policy_is_its_reference(start):
    run = start("kto")
    _, log = train_step(run.trainer, run.feed.take(1, 0).experience, 1)
    assert log.reduce()["kl"] == pytest.approx(0, abs=1e-5)
    assert log.reduce()["loss"] == pytest.approx(0.5, abs=1e-5)


def test_the_reference_point_grows_with_the_distance_from_the_reference(start):
    """z0 of a policy that was moved by hand is the mean of its mismatched log-ratios, clamped at 0."""
    run = start("kto")
    experience = run.feed.take(1, 0).experience
    with torch.no_grad():
        for parameter in run.trainer.loaded.model.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
    batch = run.trainer.advantages.refresh(experience, moved=False)
    other = experience.mismatched
    policy_BT = token_logprobs(
        run.trainer.loaded.model, other.tokens, other.completion_mask_BT, temperature=1.0
    ).logprobs_BT
    expected_B = (policy_BT.detach() - other.ref_logprobs_BT).sum(dim=-1)
    torch.testing.assert_close(batch.mismatched_log_ratios_B, expected_B, rtol=0, atol=1e-5)
    assert expected_B.abs().max() > 0.05


# --- the state of a run -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_running_shift_is_part_of_a_checkpoint(folder, tmp_path):
    """BCO's delta: a stopped and resumed run ends with the same weights and metrics as an uninterrupted one."""
    settings = {"algorithm": {"name": "bco", "beta": 1.0}}
    whole = pt.train(config_of(folder, "bco", settings), output=str(tmp_path / "whole"))
    pt.train(config_of(folder, "bco", settings), output=str(tmp_path / "parts"), train={"steps": 2})
    resumed = pt.resume(tmp_path / "parts", steps=STEPS)
    names = [n for n in whole.metrics[-1] if not n.startswith(("time/", "memory/"))]
    assert [{n: m[n] for n in names} for m in resumed.metrics] == [{n: m[n] for n in names} for m in whole.metrics]
    deltas = [m["delta"] for m in whole.metrics]
    assert deltas[-1] != 0
    assert resumed.trainer.advantages.state_dict() == whole.trainer.advantages.state_dict()
    seen = [resumed.trainer.advantages.state_dict()[f"{kind}_count"] for kind in ("desirable", "undesirable")]
    assert sum(seen) == STEPS * ROWS


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", PREFERENCES)
def test_every_loss_trains_a_model(folder, tmp_path, algorithm):
    """The command's own function is used: data in, a checkpoint out, finite numbers, and a second run is equal."""
    runs = [
        pt.train(config_of(folder, algorithm), output=str(tmp_path / name), train={"minibatches": 2})
        for name in ("one", "two")
    ]
    losses = [[m["loss"] for m in run.metrics] for run in runs]
    assert losses[0] == losses[1]
    assert len(set(losses[0])) == STEPS
    assert runs[0].model_path is not None
    assert runs[0].model_path.joinpath("config.json").exists()
