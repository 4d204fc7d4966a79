"""The texts of a replay: held-out prompts of the run, prompts from a file, or a few built-in ones."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch

from posttrain.algorithms import ALGORITHMS
from posttrain.config import DataConfig, SamplingConfig
from posttrain.data.dropped import Dropped, Unusable
from posttrain.data.forms import Form, detect
from posttrain.data.given import where_the_run_is
from posttrain.data.prompts import Renderer, prompt_form
from posttrain.data.read import Row, read_rows
from posttrain.data.split import read_split
from posttrain.engines import make_sampler
from posttrain.errors import DataError
from posttrain.export.origin import Head, Origin
from posttrain.models.compute import PLAIN
from posttrain.models.load import LoadedModel
from posttrain.models.reward_head import row_scores, step_scores
from posttrain.types import Prompt, Tokens

BUILT_IN = (
    "Once upon a time",
    "The capital of France is",
    "1 + 2 =",
    "Write a list of three colours.",
    "the cat sat on the mat",
    "dcba",
    "def add(a, b):",
    "My favourite place is",
)
"""Prompts for a model without a run, because its training prompts are unknown."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One prompt, or one row to score, as the model was trained to read it."""

    name: str
    """Name for error messages."""
    ids: tuple[int, ...]
    text: str | None = None
    """Text of the ids; None if they are only part of a text."""
    add_special_tokens: bool = True
    tokens: tuple[int, ...] | None = None
    """All ids of `text` from the tokenizer. They may end with an EOS that is not in `ids`."""
    messages: tuple[Mapping[str, Any], ...] | None = None
    """Messages that the chat template renders as `text`."""
    template_kwargs: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Probes:
    """The texts of a replay, and their source."""

    rows: tuple[Probe, ...]
    source: str
    notes: tuple[str, ...] = ()


def find_probes(origin: Origin, loaded: LoadedModel, *, file: str | None, count: int, max_new_tokens: int) -> Probes:
    """Return the first `count` prompts that leave room for an answer. Raises DataError if there are none."""
    data = origin.config.data if origin.config else DataConfig(train=file or "built-in")
    renderer = Renderer.of(data, loaded.tokenizer, origin.model.chat_template_kwargs)
    room = (loaded.context_length or sys.maxsize) - (max_new_tokens if origin.head == "tokens" else 0)
    make = _Maker(renderer, data, origin, room)
    if file is not None:
        found = make.first(read_rows(file, split="eval" if file.startswith("task:") else "train"), count)
        if not found:
            raise DataError(
                given=f"no prompt of {file} can be replayed",
                allowed=f"prompts with at most {room} tokens",
                fix="Give shorter prompts, or fewer new tokens.",
            )
        return Probes(rows=found, source=file)
    note = ""
    if origin.run is not None and origin.config is not None:
        try:
            rows = read_split(where_the_run_is(origin.config.data, origin.run), origin.config.seed).heldout
            if found := make.first(rows, count):
                return Probes(rows=found, source="held-out rows of the run")
        except (DataError, OSError) as error:
            note = f"the run's data can no longer be read, so built-in prompts were replayed: {error}"
    built_in = [Row(values={"prompt": text}, origin="built-in") for text in BUILT_IN]
    plain = replace(make, data=data.model_copy(update={"prompt": None}))
    found = plain.first(built_in, count, kind="prompts", known_only=True)
    if not found:
        raise DataError(
            given="none of the built-in prompts can be replayed",
            allowed=f"prompts of words that the vocabulary knows, with 1 to {room} tokens",
            fix="Give suitable prompts: --prompts FILE.",
        )
    return Probes(rows=found, source="built-in prompts", notes=(note,) if note else ())


@dataclass(frozen=True)
class _Maker:
    """Turns rows of any kind of data into probes."""

    renderer: Renderer
    data: DataConfig
    origin: Origin
    room: int

    def first(
        self, rows: Sequence[Row], count: int, *, kind: str | None = None, known_only: bool = False
    ) -> tuple[Probe, ...]:
        """Return the first `count` probes that fit. `known_only`: skip rows with the token for unknown words."""
        if not rows:
            return ()
        form = self._form(rows, kind or self._kind(rows))
        made = (probe for row in rows for probe in self._of_row(row, form))
        unknown: Any = self.renderer.tokenizer.unk_token_id if known_only else None
        fitting = (probe for probe in made if 1 <= len(probe.ids) <= self.room and unknown not in probe.ids)
        first = enumerate(islice(fitting, count), start=1)
        return tuple(replace(probe, name=f"prompt {number} ({probe.name})") for number, probe in first)

    def _kind(self, rows: Sequence[Row]) -> str:
        """Return the kind of the run's data if it fits the rows, else the first kind that fits."""
        config = self.origin.config
        declared = ALGORITHMS[config.algorithm.name].data_kind if config else "prompts"
        kinds = dict.fromkeys([declared, "prompts", "pairs", "labels", "ratings", "examples", "steps"])
        for kind in kinds:
            try:
                detect(rows, kind)  # type: ignore[arg-type]
            except DataError:
                continue
            return kind
        return declared

    def _form(self, rows: Sequence[Row], kind: str) -> Form:
        if kind == "prompts" and self.data.prompt is not None:
            return prompt_form(rows, self.data.model_copy(update={"answer": None}))
        return detect(rows, kind)  # type: ignore[arg-type]

    def _of_row(self, row: Row, form: Form) -> Iterator[Probe]:
        values = form.read(row, chat=self.renderer.chat)
        if isinstance(values, Dropped):
            return
        try:
            if self.origin.head == "tokens":
                yield from self._prompt(row.origin, values)
            else:
                yield from self._answered(row.origin, values)
        except Unusable:
            return

    def _prompt(self, name: str, values: Mapping[str, Any]) -> Iterator[Probe]:
        """Yield the prompt of a row; for a plain text, its first half."""
        prompt = values.get("prompt")
        if prompt is None and "messages" in values:
            turns = values["messages"]
            answers = [place for place, turn in enumerate(turns) if turn["role"] == "assistant"]
            prompt = turns[: answers[0]] if answers else turns
        if prompt:
            yield self._probe(name, prompt, values.get("tools"))
        elif isinstance(text := values.get("text") or values.get("chosen"), str):
            ids = self.renderer.ids(text, is_chat=False)
            yield Probe(name=name, ids=ids[: max(1, len(ids) // 2)], template_kwargs={})

    def _answered(self, name: str, values: Mapping[str, Any]) -> Iterator[Probe]:
        """Yield the prompt followed by an answer, for each answer of the row."""
        prompt = values.get("prompt") or ""
        given = [values[key] for key in ("chosen", "rejected", "completion") if values.get(key)]
        given += ["\n".join(map(str, values["steps"]))] if values.get("steps") else []
        for answer in given or [""]:
            before = () if not prompt else self._probe(name, prompt, values.get("tools")).ids
            text = answer if isinstance(answer, str) else str(answer[-1]["content"])
            ids = self.renderer.tokenizer(text, add_special_tokens=not before).input_ids
            yield Probe(name=name, ids=(*before, *ids), template_kwargs={})

    def _probe(self, name: str, prompt: Any, tools: Iterable[Mapping[str, Any]] | None) -> Probe:
        messages = self.renderer.messages(prompt)
        text = self.renderer.text(prompt, tools=None if tools is None else list(tools))
        whole = self.renderer.tokenizer(text, add_special_tokens=messages is None).input_ids
        kwargs = dict(self.renderer.template_kwargs or {}) | ({} if tools is None else {"tools": list(tools)})
        return Probe(
            name=name,
            ids=self.renderer.ids(text, is_chat=messages is not None),
            text=text,
            add_special_tokens=messages is None,
            tokens=tuple(whole),
            messages=messages,
            template_kwargs=kwargs,
        )


# --- outputs of the trained model ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Expected:
    """One probe and the output that the exported model must give."""

    probe: Probe
    ids: tuple[int, ...] = ()
    """Greedy tokens of the trained model, EOS included."""
    logprobs: tuple[float, ...] = ()
    gaps: tuple[float, ...] = ()
    """Lead of the best token over the second best at each position, in nats."""
    score: float = 0.0


def answers(loaded: LoadedModel, head: Head, probes: Sequence[Probe], *, max_new_tokens: int) -> list[Expected]:
    """Return the model's outputs, computed by the code of training and sampling."""
    if head == "tokens":
        return _continued(loaded, probes, max_new_tokens)
    return [Expected(probe=probe, score=_score(loaded, head, probe)) for probe in probes]


def _continued(loaded: LoadedModel, probes: Sequence[Probe], max_new_tokens: int) -> list[Expected]:
    sampler = make_sampler(replace(loaded, compute=PLAIN))
    sampling = SamplingConfig(temperature=0.0, max_completion_length=max_new_tokens)
    prompts = [Prompt(index=place, ids=probe.ids, text=probe.text or "") for place, probe in enumerate(probes)]
    completions = [group[0] for group in sampler.generate(prompts, sampling, group_size=1, seed=0)]
    return [
        Expected(probe=probe, ids=done.ids, logprobs=done.logprobs, gaps=_gaps(loaded, probe.ids, done.ids))
        for probe, done in zip(probes, completions, strict=True)
    ]


@torch.no_grad()
def _gaps(loaded: LoadedModel, prompt: Sequence[int], completion: Sequence[int]) -> tuple[float, ...]:
    ids_1T = torch.tensor([[*prompt, *completion]], device=loaded.device)
    logits_TV = loaded.model(input_ids=ids_1T, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
    best_T2 = logits_TV.topk(2, dim=-1).values
    return tuple((best_T2[:, 0] - best_T2[:, 1]).tolist())


@torch.no_grad()
def _score(loaded: LoadedModel, head: Head, probe: Probe) -> float:
    """Return the score of the row, read at its last token."""
    ids_1T = torch.tensor([probe.ids], device=loaded.device)
    tokens = Tokens(input_ids_BT=ids_1T, lengths_B=torch.tensor([len(probe.ids)]))
    if head == "score":
        return row_scores(loaded.model, tokens)[0].item()
    ends_1T = torch.zeros(ids_1T.shape, dtype=torch.bool)
    ends_1T[0, -1] = True
    return step_scores(loaded.model, tokens, ends_1T)[0, -1].item()
