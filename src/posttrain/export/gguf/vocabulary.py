"""Converts a tokenizer to GGUF's form: byte-level BPE ("gpt2") or sentencepiece-like BPE ("llama").

A file names the rule that splits text before merging. llama.cpp has a fixed set of rules, so a tokenizer with any other
rule is refused. One-character tokens without merges (the built-in tiny models) are also written as byte-level BPE.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gguf import TokenType
from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from posttrain.errors import ModelError

SPLITS: Mapping[str, str] = {
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+": (
        "qwen2"
    ),
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)"
    r"|\s+": "llama-bpe",
}
"""Regular expression of the tokenizer -> its name in llama.cpp."""
UNREACHABLE = -1e6
"""Score of a piece that no merge produces."""


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The entries about the tokenizer in the file."""

    model: str
    pre: str
    tokens: Sequence[str]
    types: Sequence[int]
    merges: Sequence[str]
    scores: Sequence[float] | None = None
    """Scores of the pieces, only for "llama": pieces with a higher score are merged first."""
    add_space_prefix: bool | None = None


def vocabulary(tokenizer: PreTrainedTokenizerBase, rows: int) -> Vocabulary:
    """Convert a tokenizer. Each of the `rows` of the embedding gets a token; unused rows get [PAD0] and so on.

    Raises ModelError for a tokenizer that GGUF cannot express.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise _no_form(f"{type(tokenizer).__name__} is not one of the library tokenizers")
    parts = json.loads(backend.to_str())
    kind = parts["model"]["type"]
    if kind == "WordLevel":
        return _characters(parts, rows)
    if kind != "BPE":
        raise _no_form(f"a vocabulary of type {kind}")
    return _byte_level(parts, rows) if _has(parts["pre_tokenizer"], "ByteLevel") else _sentencepiece(parts, rows)


def _byte_level(parts: Mapping[str, Any], rows: int) -> Vocabulary:
    if parts["normalizer"] is not None and parts["normalizer"]["type"] != "NFC":
        raise _no_form(f"the normalizer {parts['normalizer']['type']}")
    return Vocabulary(
        model="gpt2",
        pre=_split_rule(parts["pre_tokenizer"]),
        **_tokens(parts, parts["model"]["vocab"], rows),
        merges=_merges(parts),
    )


def _split_rule(pre: Mapping[str, Any]) -> str:
    steps = pre["pretokenizers"] if pre["type"] == "Sequence" else [pre]
    kinds = [step["type"] for step in steps]
    if any(step.get("add_prefix_space") for step in steps):
        raise _no_form("a space before each text (add_prefix_space)")
    if kinds == ["ByteLevel"] and steps[0]["use_regex"]:
        return "gpt-2"
    if kinds == ["Digits", "ByteLevel"] and steps[0]["individual_digits"] and steps[1]["use_regex"]:
        return "smollm"
    if kinds == ["Split", "ByteLevel"] and (rule := SPLITS.get(steps[0]["pattern"].get("Regex", ""))):
        return rule
    raise _no_form(f"a rule for splitting text that has no name in llama.cpp ({', '.join(kinds)})")


def _characters(parts: Mapping[str, Any], rows: int) -> Vocabulary:
    """Convert a vocabulary of ASCII characters to byte-level BPE without merges."""
    special = {token["content"] for token in parts["added_tokens"]}
    spelled = bytes_to_unicode()
    vocab = {}
    for token, number in parts["model"]["vocab"].items():
        if token not in special and (len(token) != 1 or not token.isascii()):
            raise _no_form(f"the whole word {token!r}")
        vocab[token if token in special else spelled[ord(token)]] = number
    return Vocabulary(model="gpt2", pre="gpt-2", **_tokens(parts, vocab, rows), merges=())


def _sentencepiece(parts: Mapping[str, Any], rows: int) -> Vocabulary:
    if not parts["model"].get("byte_fallback"):
        raise _no_form("BPE that works neither on bytes nor falls back to them")
    merges = _merges(parts)
    rank: dict[str, int] = {}
    for place, merge in enumerate(merges):
        rank.setdefault(merge.replace(" ", "", 1), place)
    made = _tokens(parts, parts["model"]["vocab"], rows)
    scores = [-float(rank[token] + 1) if token in rank else UNREACHABLE for token in made["tokens"]]
    prefix = _has(parts["normalizer"], "Prepend") or _prepends(parts["pre_tokenizer"])
    return Vocabulary(model="llama", pre="default", **made, merges=merges, scores=scores, add_space_prefix=prefix)


def _prepends(pre: Any) -> bool:
    steps = (pre or {}).get("pretokenizers", [pre] if pre else [])
    return any(step["type"] == "Metaspace" and step.get("prepend_scheme") != "never" for step in steps)


def _tokens(parts: Mapping[str, Any], vocab: Mapping[str, int], rows: int) -> dict[str, Any]:
    """Return `tokens` and `types`, one for each row of the embedding."""
    tokens = [f"[PAD{number}]" for number in range(rows)]
    types = [TokenType.UNUSED] * rows
    for token, number in vocab.items():
        is_byte = len(token) == 6 and token.startswith("<0x") and token.endswith(">")
        tokens[number], types[number] = token, TokenType.BYTE if is_byte else TokenType.NORMAL
    for token in parts["added_tokens"]:
        kind = TokenType.CONTROL if token["special"] else TokenType.USER_DEFINED
        tokens[token["id"]], types[token["id"]] = token["content"], kind
    if (unknown := parts["model"].get("unk_token")) in vocab and parts["model"]["type"] == "BPE":
        types[vocab[unknown]] = TokenType.UNKNOWN
    return {"tokens": tokens, "types": [int(kind) for kind in types]}


def _merges(parts: Mapping[str, Any]) -> list[str]:
    return [merge if isinstance(merge, str) else " ".join(merge) for merge in parts["model"]["merges"]]


def _has(part: Any, kind: str) -> bool:
    """Is this part of a tokenizer, or a part inside it, of this type?"""
    if isinstance(part, list):
        return any(_has(inner, kind) for inner in part)
    if not isinstance(part, dict):
        return False
    return part.get("type") == kind or any(_has(inner, kind) for inner in part.values())


def _no_form(what: str) -> ModelError:
    return ModelError(
        given=f"the tokenizer has {what}, which a GGUF file cannot express",
        allowed="byte-level BPE with a known splitting rule, BPE with byte fallback, or ASCII characters",
        fix="Export with --to hf.",
    )
