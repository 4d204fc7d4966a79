"""Forgetting: does the model still predict a text that is unrelated to its training?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from posttrain.data.collate import collate
from posttrain.data.read import read_rows
from posttrain.errors import DataError
from posttrain.evaluate.row_scores import RowScores
from posttrain.models.entering import computes_on
from posttrain.models.forward import token_logprobs
from posttrain.models.modes import evaluating

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class ReferenceLoss(NamedTuple):
    """Mean negative log-probability of a reference text."""

    loss: float
    """Loss in nats per token."""
    tokens: int
    """Number of predicted tokens."""


def reference_loss(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    path: Path | str,
    *,
    window: int = 512,
    max_tokens: int = 20_000,
    compute_dtype: torch.dtype = torch.float32,
    chunk_tokens: int = 1024,
) -> ReferenceLoss:
    """Return the loss of `model` on a plain text, or on the `text` column of a JSONL, JSON, CSV or Parquet file.

    Each document is cut into windows of at most `window` tokens. A window begins with the tokenizer's BOS token: a
    model that was trained with BOS predicts badly without it (minimind2-small: 14.9 nats per token instead of 4.6). If
    there is no BOS, a window begins with the last token of the previous window. So every token is predicted once,
    except the first token of a document without BOS. Only the first `max_tokens` predictions count. `window` must fit
    the model's context. Raises `DataError` for a file that cannot be read or has nothing to predict.
    """
    scores = window_losses(
        model,
        tokenizer,
        read_texts(path),
        window=window,
        max_tokens=max_tokens,
        compute_dtype=compute_dtype,
        chunk_tokens=chunk_tokens,
    )
    count, total = sum(scores.tokens), -math.fsum(scores.logprobs)
    if count == 0:
        raise DataError(given=f"{path} has no two tokens in a row", allowed="a text", fix="Use another file.")
    return ReferenceLoss(loss=total / count if math.isfinite(total) else math.inf, tokens=count)


def window_losses(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    *,
    window: int,
    max_tokens: int = 20_000,
    compute_dtype: torch.dtype,
    chunk_tokens: int,
) -> RowScores:
    """Return the log-probability of each window of the texts, cut as in `reference_loss`."""
    windows = _limited(_windows(texts, tokenizer, window), max_tokens)
    rows = [(ids[:1], ids[1:]) for ids in windows]
    return row_logprobs(model, rows, compute_dtype=compute_dtype, chunk_tokens=chunk_tokens)


def row_logprobs(
    model: nn.Module,
    rows: Sequence[tuple[Sequence[int], Sequence[int]]],
    *,
    compute_dtype: torch.dtype,
    chunk_tokens: int,
) -> RowScores:
    """Return, for each row (given ids, predicted ids), the log-probability of the predicted ids at temperature 1."""
    device = computes_on(model)
    narrow, logprobs = compute_dtype != torch.float32, list[float]()
    with torch.no_grad(), evaluating(model), torch.autocast(device.type, dtype=compute_dtype, enabled=narrow):
        for start in range(0, len(rows), 16):
            tokens, mask_BT = collate(rows[start : start + 16], pad_id=0)
            found = token_logprobs(model, tokens, mask_BT, temperature=1.0, chunk_tokens=chunk_tokens)
            logprobs += found.logprobs_BT.sum(dim=-1, dtype=torch.float64).tolist()
    return RowScores(logprobs, [len(predicted) for _, predicted in rows])


def read_texts(path: Path | str) -> list[str]:
    """Read the documents of a file. A `.txt` or `.md` file is one document."""
    path = Path(path)
    if path.suffix in (".txt", ".md"):
        try:
            return [path.read_text(encoding="utf-8")]
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(
                given=f"{path} cannot be read ({error})", allowed="a text file in UTF-8", fix="Check the path."
            ) from error
    rows = read_rows(str(path))
    for row in rows:
        if not isinstance(row.values.get("text"), str):
            raise DataError(
                given=f"{row.origin} has no text in the column 'text'",
                allowed="a .txt file, or rows with a column 'text'",
                fix=f"Rename a column; the file has {', '.join(map(repr, row.values))}.",
            )
    return [row.values["text"] for row in rows]


def _windows(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, window: int) -> Iterator[list[int]]:
    bos: Any = tokenizer.bos_token_id
    for text in texts:
        ids: list[int] = list(tokenizer(text, add_special_tokens=False, verbose=False).input_ids)
        first: list[int] = ids[:1] if bos is None else [int(bos)]
        rest = ids[1:] if bos is None else ids
        for start in range(0, len(rest), window - 1):
            yield [*first, *rest[start : start + window - 1]]
            if bos is None:
                first = rest[start + window - 2 : start + window - 1]


def _limited(windows: Iterator[list[int]], max_tokens: int) -> Iterator[list[int]]:
    left = max_tokens
    for ids in windows:
        if left <= 0:
            return
        yield ids[: left + 1]
        left -= len(ids) - 1
