"""How long the rows of data on this machine are: read and tokenised as a run does, so that no plan has to assume it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from posttrain.config import RunConfig

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MOST_ROWS = 500
"""That are read: enough for lengths, and done in a second."""


@dataclass(frozen=True, kw_only=True)
class RowLengths:
    """In tokens. Of prompts that the model answers itself, the completion is not known, and 0."""

    rows: int
    whole: bool
    """All rows of the data; else the first ones."""
    heldout: int | None
    """Rows that are held out; None where not all were read."""
    prompt: int
    """Of the longest row, where it has the longest completion."""
    completion: int
    mean_prompt: int
    mean_completion: int

    def __str__(self) -> str:
        rows = f"{'all' if self.whole else 'the first'} {self.rows:,} rows"
        if not self.completion:
            return (
                f"prompts of up to {self.prompt:,} tokens ({self.mean_prompt:,} on average), as in {rows} of the data"
            )
        longest, mean = self.prompt + self.completion, self.mean_prompt + self.mean_completion
        return f"rows of up to {longest:,} tokens ({mean:,} on average), as in {rows} of the data"


def row_lengths(config: RunConfig, context: int | None = None) -> RowLengths | None:
    """None where data or tokenizer are not on this machine, or not as they should be: whoever trains says why."""
    train = [config.data.train] if isinstance(config.data.train, str) else config.data.train
    if config.sampled_pairs is not None or not all(Path(name).expanduser().is_file() for name in train):
        return None
    try:
        return _read(config, context)
    except Exception:  # an estimate has no say in whether a run begins
        return None


def _read(config: RunConfig, context: int | None) -> RowLengths | None:
    from posttrain.data.dataset import Sequences
    from posttrain.data.looks import LOOKS, Looking
    from posttrain.data.prompts import Renderer
    from posttrain.data.split import read_split

    tokenizer = _tokenizer(config)
    if tokenizer is None:
        return None
    asked = config.data.max_rows
    most = min(asked or MOST_ROWS, MOST_ROWS)
    settings = config.data.model_copy(update={"max_rows": most, "streaming": False, "max_dropped": 1.0})
    split = read_split(settings, config.seed)
    kind = config.algorithm.build().data_kind
    room = (context or 2**31) - (config.sampling.max_completion_length if kind == "prompts" else 0)
    look = Looking(
        rows=split.train,
        settings=settings,
        renderer=Renderer.of(settings, tokenizer, config.model.chat_template_kwargs),
        eos_ids=frozenset({int(tokenizer.eos_token_id)} if isinstance(tokenizer.eos_token_id, int) else ()),
        max_length=room if kind == "prompts" else min(room, settings.max_length or room),
        unit="tokens",
    )
    records, _, _ = LOOKS[kind].render(look)
    if kind == "prompts":
        pairs = [(len(record.ids), 0) for record in records]
    else:
        rows = ((len(row.input_ids), sum(row.completion_mask)) for row in Sequences(records))
        pairs = [(tokens - trained, trained) for tokens, trained in rows]
    longest, completion = max(map(sum, pairs)), max(trained for _, trained in pairs)
    means = [round(sum(side) / len(pairs)) for side in zip(*pairs, strict=True)]
    read = len(split.train) + len(split.heldout)
    whole = read < most or asked == most
    return RowLengths(
        rows=read,
        whole=whole,
        heldout=len(split.heldout) if whole else None,
        prompt=max(1, longest - completion),
        completion=completion,
        mean_prompt=max(1, means[0]),
        mean_completion=means[1],
    )


def _tokenizer(config: RunConfig) -> PreTrainedTokenizerBase | None:
    """That of a folder, of a model in the cache of the Hub, or of the built-in models; nothing is downloaded."""
    form, colon, _ = config.model.path.partition(":")
    if colon and form in ("tiny", "tiny-moe"):
        from posttrain.tasks.tiny import build_tokenizer

        return build_tokenizer()
    from huggingface_hub import try_to_load_from_cache
    from transformers import AutoTokenizer

    folder = Path(config.model.path).expanduser()
    if not folder.is_dir():
        cached = try_to_load_from_cache(config.model.path, "tokenizer_config.json", revision=config.model.revision)
        if not isinstance(cached, str):
            return None
        folder = Path(cached).parent
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if config.model.chat_template is not None:
        tokenizer.chat_template = Path(config.model.chat_template).read_text(encoding="utf-8")
    return tokenizer
