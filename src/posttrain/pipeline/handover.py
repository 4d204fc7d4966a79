"""The proof that a stage of a pipeline gets the model that an earlier stage has trained.

When a stage ends, its trained model is described while it is still in memory: a sha256 of each weight, the model's
outputs for fixed token ids (greedy answers and their log-probabilities, or scores), its EOS ids and its chat template.
Before a later stage uses that model, the checkpoint's files are verified against their manifest, and the model is
loaded as the stage will load it. Its description must be the same. Replaced files, weights that a loader filled in, or
a changed tokenizer are errors that name both stages.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from posttrain.config import ModelConfig, SamplingConfig
from posttrain.data.collate import collate
from posttrain.engines import make_sampler
from posttrain.engines.delivery import tolerance_for
from posttrain.errors import HandOverError
from posttrain.files import write_durably
from posttrain.models.compute import Compute
from posttrain.models.load import LoadedModel, load_model
from posttrain.models.modes import evaluating
from posttrain.models.reward_head import load_reward_model, load_step_model, row_scores, step_scores
from posttrain.models.save import merged_weights
from posttrain.store.checkpoint import Checkpoint, verify
from posttrain.types import Prompt

Makes = Literal["text", "scores", "steps"]
"""The output of a model: text, one score for a whole answer, or one for each of its steps."""

_LOAD: Mapping[Makes, Callable[[ModelConfig], LoadedModel]] = {
    "text": load_model,
    "scores": partial(load_reward_model, trained=True),
    "steps": partial(load_step_model, trained=True),
}

PROBE_ROWS, PROBE_TOKENS, PROBE_ANSWER = 4, 8, 16


@dataclass(frozen=True, kw_only=True)
class HandOver:
    """The description of the model that a stage hands over."""

    step: int
    """The step of the checkpoint."""
    weights: Mapping[str, str]
    """Name of each weight -> sha256 of its type, shape and bytes, adapters merged."""
    eos_ids: tuple[int, ...]
    chat_template: str
    """The chat template of the tokenizer; empty without one."""
    answers: tuple[tuple[int, ...], ...]
    """Greedy answers to the probe; empty for a model that scores."""
    values: tuple[tuple[float, ...], ...]
    """Log-probability of each token of these answers, or the score of each row."""

    @property
    def digest(self) -> str:
        """One hash of all weights."""
        return hashlib.sha256(json.dumps(dict(sorted(self.weights.items()))).encode()).hexdigest()

    def write(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        write_durably(path, json.dumps(asdict(self), indent=1).encode())

    @staticmethod
    def read(path: Path) -> HandOver:
        saved = json.loads(path.read_text(encoding="utf-8"))
        saved["answers"], saved["values"] = (tuple(map(tuple, saved[name])) for name in ("answers", "values"))
        return HandOver(**{**saved, "eos_ids": tuple(saved["eos_ids"])})


def describe(loaded: LoadedModel, step: int, *, makes: Makes) -> HandOver:
    """Describe a model. On a CPU this uses plain float32, however the run computed, because both sides must agree."""
    loaded = _plainly(loaded)
    rows = probe(loaded)
    answers: tuple[tuple[int, ...], ...] = ()
    if makes == "text":
        answers, values = _greedy(loaded, rows)
    else:
        values = _scores(loaded, rows, makes)
    return HandOver(
        step=step,
        weights={name: _hash(tensor) for name, tensor in merged_weights(loaded.model).items()},
        eos_ids=tuple(sorted(loaded.eos_ids)),
        chat_template=str(loaded.tokenizer.chat_template or ""),
        answers=answers,
        values=values,
    )


def describe_saved(checkpoint: Path, model: ModelConfig, *, makes: Makes, who: str) -> HandOver:
    """Describe the model of a checkpoint, for a stage that was killed after its end and before the description."""
    found = _intact(checkpoint, who)
    return describe(_load(found, model, makes=makes), found.step, makes=makes)


def receive(checkpoint: Path, promised: HandOver, model: ModelConfig, *, makes: Makes, who: str) -> dict[str, Any]:
    """Load the model of `checkpoint` and prove that it is the promised one; returns the proof in numbers.

    `who` begins the error: "stage dpo does not get the model that stage sft has trained". Raises HandOverError.
    """
    loaded = _plainly(_load(found := _intact(checkpoint, who), model, makes=makes))
    given = describe(loaded, found.step, makes=makes)
    if fault := _difference(promised, given):
        raise _broken(who, fault, checkpoint)
    change, allowed = _worst(promised.values, _values_of(loaded, promised, makes)), tolerance_for(loaded.compute_dtype)
    if not change <= allowed:
        what = "log-probabilities of fixed answers" if makes == "text" else "scores of fixed rows"
        raise _broken(who, f"the {what} differ by {change:.3g}, more than {allowed:g}", checkpoint)
    same = sum(before == after for before, after in zip(promised.answers, given.answers, strict=True))
    return {
        "sha256": promised.digest,
        "weights_compared": len(promised.weights),
        "largest_difference": change,
        **({"same_greedy_answers": f"{same} of {len(promised.answers)}"} if makes == "text" else {}),
    }


def _plainly(loaded: LoadedModel) -> LoadedModel:
    return replace(loaded, compute=Compute()) if loaded.device.type == "cpu" else loaded


def _intact(checkpoint: Path, who: str) -> Checkpoint:
    found = verify(checkpoint)
    if isinstance(found, Checkpoint):
        return found
    raise _broken(who, "; ".join(map(str, found)), checkpoint)


def _load(found: Checkpoint, model: ModelConfig, *, makes: Makes) -> LoadedModel:
    """Load the model as the next stage will load it, with the saved chat template."""
    as_saved = {"path": str(found.model), "gguf_file": None, "revision": None, "chat_template": None}
    place = model.model_copy(update=as_saved)
    loaded = _LOAD[makes](place)
    loaded.model.eval()
    return loaded


def probe(loaded: LoadedModel) -> list[tuple[int, ...]]:
    """Rows of token ids spread over the vocabulary. They depend only on its size and the context length."""
    size = loaded.model.config.get_text_config().vocab_size
    length = min(PROBE_TOKENS, max(1, (loaded.context_length or PROBE_TOKENS * 2) // 2))
    return [tuple((7919 * (row * length + place) + 17) % size for place in range(length)) for row in range(PROBE_ROWS)]


def _greedy(loaded: LoadedModel, rows: list[tuple[int, ...]]) -> tuple[Any, Any]:
    """The greedy answers to the rows, and the log-probability of each of their tokens."""
    prompts = [Prompt(index=index, ids=ids, text="") for index, ids in enumerate(rows)]
    room = (loaded.context_length or PROBE_ANSWER + len(rows[0])) - len(rows[0])
    settings = SamplingConfig(group_size=1, max_completion_length=min(PROBE_ANSWER, room), temperature=0.0)
    groups = make_sampler(loaded).generate(prompts, settings, group_size=1, seed=0)
    answers = tuple(tuple(group[0].ids) for group in groups)
    return answers, _logprobs(loaded, rows, answers)


def _logprobs(loaded: LoadedModel, rows: list[tuple[int, ...]], answers: tuple[tuple[int, ...], ...]) -> Any:
    return tuple(map(tuple, make_sampler(loaded).score(rows, answers, temperature=1.0)))


@torch.no_grad()
def _scores(loaded: LoadedModel, rows: list[tuple[int, ...]], makes: Makes) -> tuple[tuple[float, ...], ...]:
    tokens, last_BT = collate([(row[:-1], row[-1:]) for row in rows], loaded.pad_id)
    with evaluating(loaded.model), loaded.autocast():
        if makes == "steps":
            return tuple((float(score),) for score in step_scores(loaded.model, tokens, last_BT)[last_BT].float())
        return tuple((float(score),) for score in row_scores(loaded.model, tokens).float())


def _values_of(loaded: LoadedModel, promised: HandOver, makes: Makes) -> Any:
    """This model's values for the promised answers, because its own greedy answers may break ties differently."""
    rows = probe(loaded)
    return _logprobs(loaded, rows, promised.answers) if makes == "text" else _scores(loaded, rows, makes)


def _hash(tensor: Tensor) -> str:
    plain = tensor.detach().to("cpu").contiguous()
    head = f"{plain.dtype} {list(plain.shape)} ".encode()
    return hashlib.sha256(head + plain.flatten().view(torch.uint8).numpy().tobytes()).hexdigest()


def _difference(promised: HandOver, given: HandOver) -> str:
    """The first difference that is not allowed; empty if there is none."""
    ours, theirs = promised.weights, given.weights
    changed = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
    if changed:
        return f"{len(changed)} of {len(ours)} weights have different content, for example {changed[0]}"
    if promised.eos_ids != given.eos_ids:
        return f"answers ended with the token ids {list(promised.eos_ids)} and now with {list(given.eos_ids)}"
    if promised.chat_template != given.chat_template:
        return "its tokenizer has a different chat template"
    return ""


def _worst(before: Any, after: Any) -> float:
    pairs = [pair for rows in zip(before, after, strict=True) for pair in zip(*rows, strict=True)]
    return max((abs(ours - theirs) for ours, theirs in pairs), default=0.0)


def _broken(who: str, what: str, checkpoint: Path) -> HandOverError:
    return HandOverError(
        given=f"{who}: {what} ({checkpoint})",
        allowed="exactly the model that was trained",
        fix="Restore that checkpoint from a copy. Or remove the folder of the stage that made it: `posttrain resume` "
        "then trains that stage again.",
    )
