"""Steps that are trained again from a run's recorded data end in the same bits, or the replay says why not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch
from tests.catalogue import few
from tests.tiny import tiny_model, write_prompts

import posttrain as pt
from posttrain.errors import CheckpointError, ConfigError, DataError, ModelError, PosttrainError
from posttrain.experience.recorded import read_rollouts
from posttrain.experience.rollouts import FACTS, content_hash
from posttrain.store import checkpoint as checkpoints
from posttrain.train import replay as replaying

REWARDS = """
def vowels(prompt, completion, **row):
    return None if completion.startswith("z") else sum(letter in "aeiou" for letter in completion) / 8

def early(prompt, completion, **row):
    return 0.1 if completion[:1] < "m" else 0.0

def by_letter(completions, completion_ids, **rows):
    return [[0.1 * (id % 3) for id in ids] for ids in completion_ids]

by_letter.per_token = True
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replay")
    tiny_model(folder / "model")
    write_prompts(folder / "prompts.jsonl", count=20)
    (folder / "rewards.py").write_text(REWARDS)
    words = ["".join(chr(97 + (7 * n + k) % 26) for k in range(4)) for n in range(16)]
    kinds = {
        "pairs": [{"prompt": word, "chosen": word[::-1], "rejected": word[:2]} for word in words],
        "examples": [{"prompt": word, "completion": word[::-1]} for word in words],
        "labels": [{"prompt": word, "completion": word[::-1], "label": n % 2 == 0} for n, word in enumerate(words)],
    }
    for kind, rows in kinds.items():
        (folder / f"{kind}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def train(folder: Path, name: str, **changes: Any) -> Path:
    """A run of four steps, with a checkpoint after every second step."""
    config = {
        "model": str(folder / "model"),
        "algorithm": "grpo",
        "data": {"train": str(folder / "prompts.jsonl")},
        "rewards": [{"function": f"{folder / 'rewards.py'}:vowels", "weight": 0.7}],
        "sampling": {"group_size": 4, "max_completion_length": 6},
        "train": {"steps": 4, "prompts_per_step": 2, "learning_rate": 0.01},
        "evaluation": {"writing": 0, "prompts": 2, "samples": 0},
        "guards": {"max_truncated": 1.0, "max_unscored": 1.0},
        "checkpoint": {"every": 2, "keep": 9},
        "output": str(folder / name),
        "report": False,
    }
    return pt.train(config, **changes).folder


def given(folder: Path, kind: str, algorithm: str) -> dict[str, Any]:
    data = {"train": str(folder / f"{kind}.jsonl"), "eval_fraction": 0.2}
    return {"algorithm": algorithm, "data": data, "rewards": []}


def scorer(folder: Path, name: str, **more: Any) -> dict[str, Any]:
    return {"function": f"{folder / 'rewards.py'}:{name}", **more}


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    return train(folder, "grpo")


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    """A copy of a run, for a test to change."""
    return Path(shutil.copytree(run, tmp_path / "run"))


TWO_UPDATES = {"train.minibatches": 2, "train.epochs": 2}
RUNS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "several updates, a reference and a schedule": lambda f: {
        "algorithm": {"name": "grpo", "kl_coef": 0.1},
        "train.schedule": "cosine",
        **TWO_UPDATES,
    },
    "published every second step": lambda f: {"train.publish_every": 2, "train.mask_truncated": True},
    "dynamic sampling": lambda f: {"algorithm": "dapo", "rewards": [scorer(f, "early")]},
    "a critic": lambda f: {"algorithm": "ppo", **TWO_UPDATES},
    "a critic of its own, on rewards of tokens": lambda f: {
        "algorithm": "ppo",
        "critic": {"kind": "separate"},
        "rewards": [scorer(f, "by_letter", weight=0.3), scorer(f, "early", weight=0.1)],
    },
    "adapters with dropout": lambda f: {"lora": {"rank": 2, "dropout": 0.5}, **TWO_UPDATES},
    "adapters of policy and critic": lambda f: {"lora": {"rank": 2}, "algorithm": "ppo"},
    "greedy rewards": lambda f: {"algorithm": "remax", "sampling.group_size": 1},
    "a moving average": lambda f: {"algorithm": {"name": "reinforce", "baseline": "moving_average"}},
    "several rewards behind gates": lambda f: {
        "algorithm": "gdpo",
        "rewards": [scorer(f, "early"), scorer(f, "vowels", weight=0.3, gate="early")],
    },
    "pairs of sampled answers": lambda f: {"algorithm": "online_dpo"},
    "given pairs": lambda f: given(f, "pairs", "dpo"),
    "given examples": lambda f: given(f, "examples", "sft"),
    "given labels": lambda f: given(f, "labels", "kto"),
    "a reward model": lambda f: given(f, "pairs", "reward_model"),
    "pairs that were sampled first": lambda f: {"algorithm": "dpo", "sampled_pairs": {"max_without": 1.0}},
}


IN_SHORT = ("dynamic sampling", "a critic of its own, on rewards of tokens")


@pytest.mark.parametrize("name", few(RUNS, *IN_SHORT))
def test_a_run_that_is_trained_again_ends_in_the_same_bits(folder, name):
    run = train(folder, name.replace(" ", "-").replace(",", ""), **RUNS[name](folder))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    result = pt.replay(run)
    assert [*map(str, result.differences)] == []
    assert (result.first, result.last, result.exit_code) == (1, 4, 0)
    compared = result.compared
    assert (compared.steps, compared.checkpoints) == (4, [2, 4])
    assert compared.metrics > 4 * 3
    assert compared.tensors >= 2 * 3 * 4
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before, "replay never writes to it"


@pytest.mark.slow
def test_an_asynchronous_run_is_repeated_which_no_seed_could_do(folder):
    asynchronous = {"rollout.engines": 1, "train.run_ahead": 2, "train.max_staleness": 2, "train.steps": 6}
    run = train(folder, "asynchronous", **asynchronous, **{"sampling.max_completion_length": 40})
    versions = {version for step in range(1, 7) for row in read_rollouts(run, step).rows for version in row["versions"]}
    assert len(versions) > 1, "answers of several versions were trained"
    result = pt.replay(run)
    assert [*map(str, result.differences)] == []
    assert result.compared.checkpoints == [2, 4, 6]
    refused_ahead = {"train.max_staleness": 0, "algorithm.correction": "none", "algorithm.name": "online_dpo"}
    for name, value in refused_ahead.items():
        what_if = pt.replay(run, **{name: value})
        assert what_if.changed[0].startswith(f"{name} = {value} (was ")
        assert what_if.apart[6] > 0
    with pytest.raises(ConfigError, match=r"train.run_ahead has no effect in a replay"):
        pt.replay(run, **{"train.run_ahead": 0})
    with pytest.raises(ConfigError, match=r"train.minibatches = 99, but a step has 8 rows"):
        pt.replay(run, **{"train.minibatches": 99})


@pytest.mark.slow
def test_the_bits_are_those_of_the_checkpoint_and_not_only_said_to_be(run):
    result = pt.replay(run)
    last = "checkpoints/step-000004/state/tensors.safetensors"
    assert (result.folder / last).read_bytes() == (run / last).read_bytes()
    assert result.folder.name.startswith("grpo-replay-")
    told = json.loads((result.folder / "replay.json").read_text())
    assert told["same"]
    assert all(len(digest) == 64 for digest in told["sha256"]["4"].values())
    assert "the same bits" in result.render()


@pytest.mark.slow
def test_a_run_that_was_killed_and_resumed_with_other_settings_is_repeated_across_the_seam(folder, tmp_path):
    run = train(folder, "killed", **{"train.steps": 3, "train.schedule": "linear", "algorithm.kl_coef": 0.1})
    shutil.rmtree(run / "checkpoints" / "step-000003")  # as if the run had been killed in step 3
    pt.resume(run, steps=6)
    held = json.loads((run / "settings.json").read_text())
    assert sorted(held) == ["0", "2"]
    assert held["2"]["train.steps"] == 6
    result = pt.replay(run)
    assert [*map(str, result.differences)] == []
    assert (result.compared.steps, result.compared.checkpoints) == (6, [2, 4, 6])


@pytest.mark.slow
def test_a_replay_starts_in_the_middle_and_ends_there(run):
    result = pt.replay(run, first=3, last=3)
    assert (result.same, result.compared.steps, result.start) == (True, 1, "the checkpoint of step 2")
    assert "no weights were compared" in result.render()
    assert (result.folder / "checkpoints" / "step-000003" / "model").is_dir(), "a model that the run did not keep"


@pytest.mark.slow
def test_without_its_first_checkpoint_a_run_starts_from_its_model(copy):
    shutil.rmtree(copy / "checkpoints" / "step-000000")
    assert pt.replay(copy).first == 3, "the oldest checkpoint that exists"
    result = pt.replay(copy, first=1)
    assert (result.same, result.start) == (True, "the model that the run started with")
    with pytest.raises(ConfigError, match=r"--from 2, but there is no checkpoint of step 1 .*allowed: --from 1 or 3"):
        pt.replay(copy, first=2)


def test_what_is_sampled_needs_neither_data_nor_rewards(folder, run):
    needed = [folder / name for name in ("prompts.jsonl", "rewards.py")]
    for path in needed:
        path.rename(path.with_suffix(".away"))
    try:
        assert pt.replay(run).same
    finally:
        for path in needed:
            path.with_suffix(".away").rename(path)


# --- changes are noticed ----------------------------------------------------------------------------------------------


def rewritten(run: Path, change: Callable[[list[dict[str, Any]]], Any], *, sealed: bool, step: int = 3) -> None:
    """Change the rows in the rollout file of a step; with `sealed`, also update the hash to match them."""
    file = run / "rollouts" / f"step-{step:06d}.parquet"
    table = parquet.read_table(file)
    rows = table.to_pylist()
    change(rows)
    facts = json.loads(table.schema.metadata[FACTS])
    changed = pa.Table.from_pylist(rows, schema=table.schema)
    if sealed:
        facts["sha256"] = content_hash(changed, facts)
    parquet.write_table(changed.replace_schema_metadata({FACTS: json.dumps(facts)}), file)


def sealed_anew(checkpoint: Path, facts: dict[str, Any]) -> None:
    """Write the checkpoint again, with correct checksums of its content and with these facts."""
    aside = checkpoint.rename(checkpoint.with_name("aside"))

    def write(folder: Path) -> None:
        for part in ("model", "state"):
            shutil.copytree(aside / part, folder / part)

    checkpoints.Checkpoints(checkpoint.parent, keep=9).save(facts["step"], write, facts)
    shutil.rmtree(aside)


def flip_a_reward(rows: list[dict[str, Any]]) -> None:
    rows[0]["reward"] = 1.0 - rows[0]["reward"]


def swap_two_rows(rows: list[dict[str, Any]]) -> None:
    names = ("completion_ids", "completion", "logprobs", "versions", "finish_reason", "reward", "reward/vowels")
    for name in names:
        rows[0][name], rows[1][name] = rows[1][name], rows[0][name]


def swap_the_groups(rows: list[dict[str, Any]]) -> None:
    rows[:] = rows[4:] + rows[:4]


def nudge_a_logprob(rows: list[dict[str, Any]]) -> None:
    rows[2]["logprobs"][0] -= 1e-3


def take_another_token(rows: list[dict[str, Any]]) -> None:
    rows[3]["completion_ids"][0] ^= 1


def drop_a_row(rows: list[dict[str, Any]]) -> None:
    del rows[-1]


CHANGES = (flip_a_reward, swap_two_rows, swap_the_groups, nudge_a_logprob, take_another_token)


@pytest.mark.parametrize("change", few([*CHANGES, drop_a_row], drop_a_row))
def test_a_changed_rollout_file_is_refused_by_its_hash(run, tmp_path_factory, change):
    copy = Path(shutil.copytree(run, tmp_path_factory.mktemp("changed") / "run"))
    rewritten(copy, change, sealed=False)
    with pytest.raises(DataError, match=r"step-000003.parquet was changed: its rows do not match the hash"):
        pt.replay(copy)
    assert pt.replay(copy, last=2).same, "the steps before the change can be replayed"


@pytest.mark.parametrize("change", few(CHANGES, swap_two_rows, nudge_a_logprob))
def test_a_change_that_takes_its_hash_along_is_noticed_by_what_comes_of_it(run, tmp_path_factory, change):
    copy = Path(shutil.copytree(run, tmp_path_factory.mktemp("sealed") / "run"))
    rewritten(copy, change, sealed=True)
    result = pt.replay(copy)
    assert result.exit_code == 4
    assert result.differences[0].step == 3, "and not an earlier step"
    assert "NOT the same, from step 3 on" in result.render()


def test_a_difference_is_told_by_tensor_and_size(copy):
    state = copy / "checkpoints" / "step-000004" / "state"
    tensors, plain = checkpoints.load_state(state)
    name = "model.layers.0.mlp.up_proj.weight"
    tensors["policy"][name].view(-1)[5] += 0.25
    checkpoints.save_state(state, tensors, plain)
    sealed_anew(state.parent, {"step": 4})
    result = pt.replay(copy)
    assert [*map(str, result.differences)] == [
        f"step 4, tensor policy/{name}: 1 of 2048 numbers differ, by 0.25 at most",
    ]


@pytest.mark.slow
def test_every_byte_of_a_rollout_file_counts(run, tmp_path):
    file = run / "rollouts" / "step-000001.parquet"
    content, whole = file.read_bytes(), read_rollouts(run, 1)
    (tmp_path / "rollouts").mkdir()
    for place in range(0, len(content), 97):
        damaged = bytearray(content)
        damaged[place] ^= 0x10
        (tmp_path / "rollouts" / file.name).write_bytes(damaged)
        try:
            found = read_rollouts(tmp_path, 1)
        except DataError:
            continue
        assert found == whole, f"the reader does not read byte {place}"


@pytest.mark.slow
def test_a_file_of_another_step_or_program_and_a_gap_are_told(run, tmp_path_factory):
    def broken(how: Callable[[Path], object]) -> str:
        copy = Path(shutil.copytree(run, tmp_path_factory.mktemp("broken") / "run"))
        how(copy / "rollouts" / "step-000003.parquet")
        with pytest.raises(PosttrainError) as caught:
            pt.replay(copy)
        assert not [*copy.parent.glob("run-replay-*/checkpoints")], "nothing looks finished"
        return str(caught.value)

    def plainly(file: Path) -> None:
        parquet.write_table(parquet.read_table(file).replace_schema_metadata(None), file)

    assert "holds the rows of step 2" in broken(lambda file: shutil.copy(file.with_name("step-000002.parquet"), file))
    assert "another program or another version" in broken(plainly)
    assert "step 3 is not on file" in broken(Path.unlink)
    assert "cannot be read" in broken(lambda file: file.write_bytes(b"PAR1"))


# --- changes that would make a replay meaningless ---------------------------------------------------------------------


def test_versions_are_compared_as_checkpoints_record_them(run, monkeypatch):
    """Packages of torch with CUDA are of version 2.13.0, and torch itself says 2.13.0+cu130."""
    monkeypatch.setattr(torch, "__version__", f"{torch.__version__.partition('+')[0]}+another")
    newest = max((run / "checkpoints").glob("step-*"))
    recorded = json.loads((newest / "manifest.json").read_text())["versions"]
    assert replaying.versions() == {name: recorded[name] for name in ("torch", "transformers")}


@pytest.mark.slow
def test_another_version_or_machine_is_refused_and_a_remark_of_a_what_if(run, monkeypatch):
    elsewhere = {"machine": "another processor", "threads": 1}
    monkeypatch.setattr(replaying, "computed_on", lambda device: elsewhere)
    with pytest.raises(ConfigError, match=r"the run was computed differently: machine: .*another processor here"):
        pt.replay(run)
    with pytest.raises(ConfigError, match=r"Or change a setting \(train.learning_rate=1e-5\)"):
        pt.replay(run)
    assert any("another processor here" in note for note in pt.replay(run, seed=0).notes)
    monkeypatch.undo()
    monkeypatch.setattr(replaying, "versions", lambda: {"torch": "1.0", "transformers": "1.0"})
    with pytest.raises(ConfigError, match=r"torch: .* up to step 0, 1.0 here"):
        pt.replay(run)


@pytest.mark.slow
def test_the_threads_are_those_of_the_run_and_ours_are_given_back(copy):
    threads = torch.get_num_threads()
    for path in sorted((copy / "checkpoints").iterdir()):
        facts = json.loads((path / "manifest.json").read_text())["facts"]
        sealed_anew(path, facts | {"threads": threads + 1})
    seen: set[int] = set()
    pt.replay(copy, say=lambda line: line.startswith("step") and seen.add(torch.get_num_threads()))
    assert seen == {threads + 1}, "the order of a sum, and so its last bit, depends on the number of threads"
    assert torch.get_num_threads() == threads


@pytest.mark.slow
def test_another_start_model_is_refused_where_it_has_a_say(folder, tmp_path):
    tiny_model(tmp_path / "model")
    adapted = train(folder, "adapted", model=str(tmp_path / "model"), lora={"rank": 2}, **{"train.steps": 1})
    tiny_model(tmp_path / "model", seed=1)
    with pytest.raises(ModelError, match="holds another model than the run started with"):
        pt.replay(adapted)


@pytest.mark.slow
def test_another_reference_is_refused_unless_the_replay_asks_for_it(folder, tmp_path):
    for place in ("reference", "third"):
        tiny_model(tmp_path / place, seed=3)
    beside = {"reference": {"path": str(tmp_path / "reference")}, "algorithm.kl_coef": 0.1, "train.steps": 1}
    run = train(folder, "beside", **beside)
    assert not pt.replay(run, output=tmp_path / "same").differences
    tiny_model(tmp_path / "reference", seed=4)
    with pytest.raises(ModelError, match=r"reference\.path = .* holds another model than the run started with"):
        pt.replay(run, output=tmp_path / "other")
    asked = pt.replay(run, output=tmp_path / "asked", **{"reference.path": str(tmp_path / "third")})
    assert asked.what_if


def test_other_data_is_refused_where_it_is_read(folder, tmp_path):
    shutil.copy(folder / "pairs.jsonl", tmp_path / "pairs.jsonl")
    settings = given(tmp_path, "pairs", "dpo")
    run = train(folder, "moved-data", **settings)
    rows = (tmp_path / "pairs.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "pairs.jsonl").write_text("".join(rows[::-1]))
    with pytest.raises(DataError, match="the data differs from the data that the run was started with"):
        pt.replay(run)


def test_a_damaged_checkpoint_and_a_folder_without_a_run_are_refused(run, copy, tmp_path):
    file = copy / "checkpoints" / "step-000004" / "state" / "tensors.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"step-000004/state/tensors\.safetensors"):
        pt.replay(copy)
    with pytest.raises(ConfigError, match="is not the folder of a single run"):
        pt.replay(tmp_path)
    with pytest.raises(ConfigError, match="the last step, 2, is before the first"):
        pt.replay(copy, first=3, last=2)
    with pytest.raises(ConfigError, match="which is not empty"):
        pt.replay(run, output=run)


# --- what if ----------------------------------------------------------------------------------------------------------


def test_another_algorithm_on_the_same_data_is_a_what_if_and_says_so(run):
    result = pt.replay(run, train={"learning_rate": 0.02}, algorithm="rloo")
    assert result.what_if
    assert result.exit_code == 0
    assert [change.split(" = ")[0] for change in result.changed] == ["algorithm.name", "train.learning_rate"]
    assert sorted(result.apart) == [2, 4]
    assert all(share > 0 for share in result.apart.values())
    said = result.render()
    assert "What if: steps 1 to 4" in said
    assert "it claims no equality with the run" in said


def test_a_setting_of_the_same_value_is_a_what_if_without_a_difference(run):
    result = pt.replay(run, train={"learning_rate": 0.01})
    assert (result.what_if, result.same, result.changed) == (True, True, [])
    assert set(result.apart.values()) == {0.0}


@pytest.mark.slow
def test_a_critic_that_the_run_did_not_have_starts_anew(run):
    result = pt.replay(run, algorithm="ppo")
    assert any("the critic is not the run's critic" in note for note in result.notes)


@pytest.mark.slow
def test_settings_that_decide_nothing_and_algorithms_of_other_data_are_refused(run):
    for name in ("rewards", "check", "data.train", "train.prompts_per_step", "evaluation.samples", "sampling.top_p"):
        with pytest.raises(ConfigError, match=f"{name} has no effect in a replay"):
            pt.replay(run, **{name: None})
    with pytest.raises(ConfigError, match=r"train.prompts_per_step has no effect"):
        pt.replay(run, train={"learning_rate": 1.0, "prompts_per_step": 3})
    assert pt.replay(run, sampling={"temperature": 0.9}, last=1).changed == ["sampling.temperature = 0.9 (was 1.0)"]
    with pytest.raises(ConfigError, match="algorithm = dpo, which learns from pairs, but the run recorded prompts"):
        pt.replay(run, algorithm="dpo")


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_says_what_was_compared_and_its_exit_code_whether_it_was_the_same(copy, capsys):
    from posttrain.cli import run as command

    assert command(["replay", str(copy), "--from", "3", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["compared"]["tensors"] > 0
    assert "step 4 of 4: the same, its checkpoint too" in err
    rewritten(copy, flip_a_reward, sealed=True)
    assert command(["replay", str(copy)]) == 4
    assert "step 3, metric grad_norm" in capsys.readouterr().out
    assert command(["replay", str(copy), "--train.learning-rate", "1e-3", "--quiet"]) == 0
    assert "What if" in capsys.readouterr().out
