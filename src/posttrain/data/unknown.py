"""Find text that a tokenizer cannot write: it has no token for "日", and the model reads and learns <unk> instead.

The ids that a run makes anyway show it. Only the first such rows are tokenised again, to name what is missing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from posttrain.data.dropped import counted
from posttrain.data.limits import texts_in
from posttrain.data.read import Row
from posttrain.data.sampled_pairs import is_sampled_pair
from posttrain.data.special import form_of
from posttrain.data.survey import PLACES, Finding
from posttrain.errors import DataError
from posttrain.types import Example, LabelledExample, Pair, Prompt, RatedExample, StepExample
from posttrain.verify.mathematics.places import final_of
from posttrain.verify.programs.suite import holds_tests

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from posttrain.data.forms import Form, Kind

KINDS: dict[type, Kind] = {
    Example: "examples",
    Pair: "pairs",
    LabelledExample: "labels",
    RatedExample: "ratings",
    StepExample: "steps",
}
"""The kind of data of each record, except prompts."""
BYTES = [f"<0x{number:02X}>" for number in range(256)]
"""The tokens in which tokenizers with `byte_fallback` write characters that have no token."""
GOLDS_AT_ONCE = 1_000
CHARACTERS_AT_ONCE = 500_000
"""Most gold answers, and about the most of their characters, to tokenise together. The tokens of each need memory."""
ROWS_AT_ONCE = 100_000
"""Most rows whose gold answers wait, which matters if many rows share a few answers."""
FIX = "Remove or replace this text, or use a model whose tokenizer can write it."


@dataclass(frozen=True, kw_only=True)
class Unknown:
    """The token that a tokenizer writes for text that it does not know."""

    tokenizer: PreTrainedTokenizerBase
    id: int
    token: str

    @staticmethod
    def of(tokenizer: PreTrainedTokenizerBase, eos_ids: Collection[int] = ()) -> Unknown | None:
        """That token; None if the tokenizer writes any text, or if the token also begins or ends texts, so that ids do
        not tell the two apart."""
        model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
        token = getattr(model, "unk_token", tokenizer.unk_token)
        if token is None or str(token) in str(tokenizer.chat_template or ""):
            return None
        found = cast("int | None", tokenizer.convert_tokens_to_ids(str(token)))
        if found is None or found in (tokenizer.bos_token_id, tokenizer.eos_token_id, *eos_ids):
            return None
        bytes_known = {found, None}.isdisjoint(map(tokenizer.convert_tokens_to_ids, BYTES))
        if bytes_known and BYTES[0xF3] in tokenizer.tokenize("\U000f1234"):
            return None
        return Unknown(tokenizer=tokenizer, id=found, token=str(token))

    def replaces(self, ids: Sequence[int], texts: Iterable[str]) -> bool:
        """Whether the ids of these texts hold this token more often than the texts spell it."""
        return self.id in ids and ids.count(self.id) > sum(text.count(self.token) for text in texts)

    def named(self, texts: Iterable[str]) -> str:
        """The first different parts of the texts that become this token, in quotes; "" if the tokenizer cannot tell."""
        if not self.tokenizer.is_fast:
            return ""
        parts: dict[str, None] = {}
        for text in texts:
            found = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
            spans = zip(found["input_ids"], found["offset_mapping"], strict=True)
            unknown = (text[begin:end] for token, (begin, end) in spans if token == self.id)
            parts.update(dict.fromkeys(part.strip() or part for part in unknown))
        missing = [part for part in parts if part not in ("", self.token)]
        return ", ".join([*(repr(part[:20]) for part in missing[:PLACES]), *["…"] * (len(missing) > PLACES)])


def unwritten(tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> str:
    """A sentence about the text of one prompt that the tokenizer cannot write; "" if it can write all of it."""
    unknown = Unknown.of(tokenizer)
    if unknown is None or not unknown.replaces(prompt.ids, [prompt.text]):
        return ""
    what = unknown.named([prompt.text]) or "a part of this text"
    return f"The tokenizer cannot write {what}: the model reads {unknown.token} instead."


@dataclass(frozen=True, kw_only=True)
class Found:
    """Rows of which the tokenizer cannot write something, among `total` rows."""

    rows: dict[int, list[str]] = field(default_factory=dict)
    """Index of the row -> its texts, which are kept for the first rows only."""
    origins: list[str] = field(default_factory=list)

    def add(self, index: int, origin: str, texts: Iterable[str]) -> None:
        if index not in self.rows and len(self.rows) < PLACES:
            self.origins.append(origin)
        self.rows.setdefault(index, [*texts] if len(self.rows) < PLACES else [])

    def places(self, unknown: Unknown) -> str:
        """What becomes the unknown token, and the first rows that hold it."""
        names = unknown.named(text for texts in self.rows.values() for text in texts)
        where = ", ".join([*self.origins, *["…"] * (len(self.rows) > len(self.origins))])
        return f"{names} in {where}" if names else where


@dataclass(kw_only=True)
class UnknownText:
    """A count of the records whose text the tokenizer cannot write. Records are added one by one."""

    unknown: Unknown | None
    rows: Sequence[Row]
    """The rows from which the records were made."""
    eos_ids: Collection[int]
    system_prompt: str | None = None
    total: int = 0
    found: Found = field(default_factory=Found)
    trained: set[int] = field(default_factory=set)
    """Indices of the rows with such text in their trained tokens."""
    knows: bool = False
    """Whether any trained token but EOS is known, or none is trained."""
    golds: int = 0
    """Number of gold answers."""
    unwritable: Found = field(default_factory=Found)
    """The rows whose gold answer the tokenizer cannot write."""
    waiting: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    """Gold answer that is not tokenised yet -> the rows that have it: their indices and origins."""
    characters: int = 0
    """Number of characters of the waiting gold answers."""
    forms: dict[type, Form | None] = field(default_factory=dict)
    """Type of a record -> the form that says which columns of its row the model reads."""
    last: int = -1

    def add(self, record: Any) -> None:
        """Look at one record. The two answers of one row may come as two records."""
        if self.unknown is None:
            return
        self.total += record.index != self.last
        self.last = record.index
        if isinstance(record, Prompt):
            self.knows = True
            self._add_gold(record)
            if self.unknown.replaces(record.ids, [record.text]):
                self.found.add(record.index, record.origin, [record.text])
            return
        sides = (record.chosen, record.rejected) if isinstance(record, Pair) else (getattr(record, "example", record),)
        self.knows = self.knows or isinstance(record, StepExample) or any(map(self._knows, sides))
        if any(self.unknown.id in side.input_ids for side in sides):
            self._look(record, sides, self.unknown)

    def _add_gold(self, prompt: Prompt) -> None:
        """Let the gold answer of a prompt wait to be tokenised with others. The tests of a program are none."""
        gold = prompt.columns.get("answer")
        if not (isinstance(gold, str | float) or type(gold) is int) or holds_tests(gold):
            return
        text = final_of(gold)
        self.golds += 1
        self.characters += 0 if text in self.waiting else len(text)
        self.waiting.setdefault(text, []).append((prompt.index, prompt.origin))
        full = len(self.waiting) >= GOLDS_AT_ONCE or self.characters >= CHARACTERS_AT_ONCE
        if full or self.golds % ROWS_AT_ONCE == 0:
            self._tokenise_golds()

    def _tokenise_golds(self) -> None:
        """Find the waiting gold answers that the tokenizer cannot write."""
        if self.unknown is None or not self.waiting:
            return
        ids = self.unknown.tokenizer([*self.waiting], add_special_tokens=False, verbose=False)["input_ids"]
        pairs = zip(self.waiting.items(), ids, strict=True)
        wrong = [(*row, gold) for (gold, rows), one in pairs if self.unknown.replaces(one, [gold]) for row in rows]
        for index, origin, gold in sorted(wrong):
            self.unwritable.add(index, origin, [gold])
        self.waiting, self.characters = {}, 0

    def _knows(self, side: Example) -> bool:
        assert self.unknown is not None
        others, pairs = {self.unknown.id, *self.eos_ids}, zip(side.input_ids, side.completion_mask, strict=True)
        return any(trained and token not in others for token, trained in pairs)

    def _look(self, record: Any, sides: Sequence[Example], unknown: Unknown) -> None:
        """Count a row whose ids hold the unknown token, unless its text spells it or it was given as ids."""
        row = self.rows[record.index]
        texts = [self.system_prompt or "", *texts_in(self._read(row, type(record)))]
        if is_sampled_pair(row) or not any(unknown.replaces(side.input_ids, texts) for side in sides):
            self.knows = True
            return
        self.found.add(record.index, row.origin, texts)
        pairs = (zip(side.input_ids, side.completion_mask, strict=True) for side in sides)
        if any(trained and token == unknown.id for side in pairs for token, trained in side):
            self.trained.add(record.index)

    def _read(self, row: Row, record: type) -> list[Any]:
        """The values of the columns that the model reads; all values if no form fits the rows."""
        if record not in self.forms:
            self.forms[record] = form_of(self.rows, KINDS[record])
        form = self.forms[record]
        unread = () if form is None else form.unused(row.values)
        return [value for name, value in row.values.items() if name not in unread]

    @property
    def nothing_known(self) -> bool:
        """Whether each trained token of all rows, except EOS, is the unknown token."""
        return bool(self.trained) and not self.knows

    def findings(self) -> list[Finding]:
        """What to tell about the text and the gold answers."""
        return [one for one in (self.about_text(), self.about_golds()) if one is not None]

    def about_text(self) -> Finding | None:
        if self.unknown is None or not self.found.rows:
            return None
        count, places = len(self.found.rows), self.found.places(self.unknown)
        learned = f", {len(self.trained):,} of them in trained tokens" if self.trained else ""
        learned = ", and no other trained token but EOS" if self.nothing_known else learned
        hold = "holds" if count == 1 else "hold"
        return Finding(
            message=f"{count:,} of {counted(self.total, 'row')} {hold} text that the tokenizer cannot write, and the "
            f"model reads {self.unknown.token} instead{learned} ({places})",
            fix=FIX,
        )

    def about_golds(self) -> Finding | None:
        self._tokenise_golds()
        if self.unknown is None or not self.unwritable.rows:
            return None
        count, golds = len(self.unwritable.rows), counted(self.golds, "gold answer")
        return Finding(
            message=f"{count:,} of {golds} {'holds' if count == 1 else 'hold'} text that the tokenizer cannot write: no"
            f" answer of the model can be the same text ({self.unwritable.places(self.unknown)})",
            fix="A reward for the very same text is never earned there; one that reads numbers or ignores case or "
            "signs may be. " + FIX,
        )


def unknown_text(
    records: Iterable[Any],
    rows: Sequence[Row],
    tokenizer: PreTrainedTokenizerBase,
    eos_ids: Collection[int] = (),
    *,
    system_prompt: str | None = None,
    most: int | None = None,
) -> UnknownText:
    """Look at the records made from these rows, or at the first `most` of them."""
    unknown = Unknown.of(tokenizer, eos_ids)
    text = UnknownText(unknown=unknown, rows=rows, eos_ids=eos_ids, system_prompt=system_prompt)
    for record in islice(records, 0 if unknown is None else most):
        text.add(record)
    return text


def refuse_unknown(text: UnknownText, what: str) -> None:
    """Raise `DataError` if the model could learn nothing but the unknown token."""
    if text.unknown is not None and text.nothing_known:
        raise DataError(
            given=f"{what}: every trained token except EOS is {text.unknown.token}, because the tokenizer cannot write "
            f"the answers ({text.found.places(text.unknown)})",
            allowed="answers of which the tokenizer can write a part",
            fix="Use a model whose tokenizer can write this text, or other data; `posttrain data check` with --model "
            "shows what a model reads.",
        )
