"""The ids between two turns, found for any chat template, and the proof that they are right.

To find what a template writes after a turn, the bridge renders a short conversation with a stand-in for the turn and
the messages that follow it. The bridge is the text after the stand-in:

    user: Q <end> assistant: STANDIN <end> tool: 18 <end> assistant:
                                          ^~~~~ the bridge ~~~~~~~~~

Sampled text is not rendered for this, so it cannot be changed. When a run starts, the proof renders whole conversations
of several turns and checks that the template continues the exact text of the turns before. A template that removes
reasoning does not: it rewrites history. A run then has two choices, `split` and `keep`.

The template of gpt-oss (Harmony) writes turns in channels. There, the sampled text is not the content of a message, and
`<|end|>`, which the template writes after an answer, is not an EOS.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from posttrain.data.dropped import Unusable
from posttrain.data.harmony import ANALYSIS, END, FINAL, MESSAGE, NEXT, require_ends
from posttrain.data.literal import Literal as LiteralText
from posttrain.data.special import eos_pattern
from posttrain.episodes.comparing import difference, is_made_of, squeezed, unspaced
from posttrain.episodes.conduct import ROLES
from posttrain.episodes.tools import UNKNOWN
from posttrain.errors import ConfigError

if TYPE_CHECKING:
    from posttrain.data.prompts import Renderer

Message = Mapping[str, Any]
History = Literal["append", "keep", "split"]
"""append: the template only appends. The other two are for a template that rewrites history. keep: continue from the
sampled tokens all the same; split: give each turn the history that the template writes for it."""

_STANDIN = "\ue010standin\ue010"
"""Characters of Unicode's private use area, which no data contains."""
_ASKED: Message = {"role": "user", "content": "One?"}
_SAID = (("", "Two."), ("Two and two.", "Four."))
"""The policy's reasoning and answers in the conversations of the proof."""


@dataclass(frozen=True, kw_only=True)
class Bridge:
    """The text that a chat template writes between the turns of a trajectory."""

    renderer: Renderer
    eos_ids: frozenset[int]
    literal: LiteralText
    tools: tuple[Message, ...] = ()
    """The tools' schemas, as the template writes them into the prompt."""
    history: History = "append"
    one_result: bool = False
    """Whether the template writes only one call of a turn, or only one result."""
    channels: bool = False
    """Whether the template writes turns in channels, as the template of gpt-oss does."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Roles whose messages cannot follow a turn, and why."""

    @staticmethod
    def of(
        renderer: Renderer,
        eos_ids: Collection[int],
        *,
        tools: Sequence[Message] = (),
        roles: Collection[str] = ("user",),
        history: Literal["auto", "keep", "split"] = "auto",
        setting: str = "environment.history",
    ) -> Bridge:
        """Return a bridge that is proven for messages of these roles. ConfigError if the template cannot continue a
        conversation or changes text, or if it rewrites history and `history`, set by `setting`, is auto."""
        if not renderer.tokenizer.chat_template:
            raise ConfigError(
                given="turns of an environment or of tools, but the tokenizer has no chat template",
                allowed="a chat template",
                fix="Give model.chat_template the path of a Jinja file.",
            )
        literal = LiteralText.of(renderer.tokenizer, eos_ids)
        bridge = Bridge(renderer=renderer, eos_ids=frozenset(eos_ids), literal=literal, tools=tuple(tools))
        bridge = replace(bridge, one_result=bridge._takes_one_result(), channels=bridge._writes_channels())
        if bridge.channels:
            require_ends(renderer.tokenizer, eos_ids, calls="tool" in roles)
        for role in roles:
            bridge.prove(role)
        rewritten = next((what for role in roles if (what := bridge.rewritten(role))), "")
        if rewritten and history == "auto":
            raise ConfigError(
                given=f"the chat template rewrites history: {rewritten}",
                allowed=f"{setting} = split (each turn sees, and is trained with, the history that the "
                "template writes for it) or keep (each turn sees what was sampled before)",
                fix=f"Set {setting} = split to train on what the model will see when it is served with this "
                "template. keep is faster, because it computes the history only once.",
            )
        if rewritten and history != "auto":
            bridge = replace(bridge, history=history)
        return replace(bridge, refused={role: why for role in ROLES if (why := bridge._why_not(role))})

    def check(self, messages: Sequence[Message]) -> None:
        """Raise Unusable if a message has a role that the template is not proven for."""
        for role in (str(message["role"]) for message in messages):
            if role in self.refused:
                raise Unusable(f"a message of the role {role} came back, but {self.refused[role]}")

    def between(self, messages: Sequence[Message], *, last: int | None) -> tuple[int, ...]:
        """Return the ids from the end of a turn to the start of the next one; `last` is the last id of the turn.

        If that is no EOS, for example after a stop string, they begin with the template's own end of a turn.
        """
        hidden, known = self.literal.hide(messages)
        end, rest = self._behind(hidden)
        if last in self.eos_ids:
            return self.literal.ids(rest, known, after=last)
        return self.literal.ids(end + rest, known)

    def whole(self, messages: Sequence[Message], outside: Sequence[int]) -> tuple[int, ...]:
        """Return the ids of a conversation up to the next answer; the messages at `outside` came from outside."""
        hidden, known = self.literal.hide([messages[place] for place in outside])
        shown = dict(zip(outside, hidden, strict=True))
        text = self._render_as_drawn([shown.get(place, message) for place, message in enumerate(messages)])
        return self.literal.ids(text, known)

    # --- the proof ---------------------------------------------------------------------------------------------------

    def prove(self, role: str) -> None:
        """Raise ConfigError unless the bridge is what the template writes and text from outside stays text."""
        plain = [{"role": role, "content": "Three?"}]
        if role == "tool" and not self.one_result:
            plain.append({"role": role, "content": "3"})
        injected = [{**plain[0], "content": "Three?" + " ".join(self.literal.names)}, *plain[1:]]
        last = min(self.eos_ids, default=None)
        try:
            _, rest = self._behind(plain)
            if "Three?" not in rest:
                raise Unusable("nothing ends the answer before it")
            hidden, known = self.literal.hide(injected)
            _, spelled = self._behind(hidden)
            for letter, name in known.items():
                spelled = spelled.replace(letter, name)
            ids, hostile = self.between(plain, last=last), self.between(injected, last=last)
        except Unusable as refused:
            raise ConfigError(
                given=f"the chat template cannot write a message of the role {role} after an answer: {refused}",
                allowed="a template that continues conversations" + (" with tools" if role == "tool" else ""),
                fix="Name another template in model.chat_template.",
            ) from None
        if not (self._fakes_nothing(ids, hostile) and self._spells(ids, rest) and self._spells(hostile, spelled)):
            raise ConfigError(
                given="text after an answer would not reach the model unchanged: the tokenizer cannot spell the "
                "names of its own special tokens, or it changes what the chat template writes",
                allowed="a tokenizer whose ids decode to the same text again",
                fix="Use the fast tokenizer of the model, or another chat template (model.chat_template).",
            )

    def _why_not(self, role: str) -> str:
        """Return why messages of a role cannot follow a turn; empty if they can."""
        try:
            self.prove(role)
        except ConfigError as error:
            return error.given
        rewritten = self.rewritten(role) if self.history == "append" else ""
        return rewritten and f"the chat template rewrites history before it: {rewritten}"

    def _fakes_nothing(self, plain: Sequence[int], hostile: Sequence[int]) -> bool:
        """Return whether text from outside that spells all special tokens adds none. If the tokenizer lacks letters of
        their names, its token for unknown letters is not compared."""
        may_differ = () if self.literal.knows_its_letters() else (self.literal.unknown,)
        one, other = (
            [token for token in self.literal.special(ids) if token not in may_differ] for ids in (plain, hostile)
        )
        return one == other

    def _spells(self, ids: Sequence[int], text: str) -> bool:
        """Return whether the ids decode to the text, up to white space. The token for unknown letters matches any
        letters, but it cannot match the whole text."""
        tokenizer, pieces = self.renderer.tokenizer, [list[int]()]
        for token in ids:
            if token == tokenizer.unk_token_id:
                pieces.append([])
            else:
                pieces[-1].append(token)
        how = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
        read = [unspaced(str(tokenizer.decode(piece, **how))) if piece else "" for piece in pieces]
        return is_made_of(unspaced(text), read)

    def _takes_one_result(self) -> bool:
        """Return whether the template writes only one call of a turn, or refuses two."""
        result = {"role": "tool", "content": "3"}
        calls = [call(name, {}, number) for number, name in enumerate((UNKNOWN, _STANDIN))]
        results = [{**result, "name": UNKNOWN, "tool_call_id": one["id"]} for one in calls]
        try:
            self._behind([result])
        except Unusable:
            return False  # it accepts no result at all
        try:
            self._behind([result] * 2)
            turn = {"role": "assistant", "content": "", "tool_calls": calls}
            return _STANDIN not in self._render([_ASKED, turn, *results], prompted=True)
        except Unusable:
            return True

    def _writes_channels(self) -> bool:
        try:
            answered = [_ASKED, {"role": "assistant", "content": _STANDIN}, _ASKED]
            return FINAL + _STANDIN in self._render(answered, prompted=True)
        except Unusable:
            return False

    def rewritten(self, role: str) -> str:
        """Return an error text that shows where the template rewrites the turns before; empty if it never does."""
        beside_calls = self._writes_beside_calls() if role == "tool" else True
        for conversation, drawn in self._conversations(role):
            answers = [place for place, message in enumerate(conversation) if message["role"] == "assistant"]
            asked = [self._render(conversation[:place], prompted=True) for place in [*answers, len(conversation)]]
            for said, before, after in zip(drawn, asked[:-1], asked[1:], strict=True):
                expected = before + (said if beside_calls else "")
                if not squeezed(after).startswith(squeezed(expected)):  # white space may be trimmed
                    return difference(expected, after)
        return ""

    def _writes_beside_calls(self) -> bool:
        """Return whether the template writes the text of a turn that has calls. In some formats a turn has only one of
        the two."""
        talk, [said, _] = next(self._conversations("tool"))
        return said in self._render(talk[:3], prompted=True)

    def _conversations(self, role: str) -> Iterator[tuple[list[dict[str, Any]], list[str]]]:
        """Yield conversations of several turns and these turns as sampled, with and without a system message and
        reasoning."""
        for system in ([], [{"role": "system", "content": "Be brief."}]):
            for turns in itertools.product(_SAID, repeat=2):
                talk: list[dict[str, Any]] = [*system, {"role": "user", "content": "One?"}]
                drawn = []
                for number, (reasoning, answer) in enumerate(turns):
                    back: dict[str, Any] = {"role": role, "content": f"{number} is there."}
                    message, said = _turn(reasoning, answer, channels=self.channels, calls=role == "tool")
                    if role == "tool":
                        message["tool_calls"] = [call("look", {"at": str(number)}, number)]
                        back |= {"tool_call_id": call_id(number), "name": "look"}
                    talk += [message, back]
                    drawn.append(said)
                yield talk, drawn

    def turn_that_calls(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return the text with which the policy would make this call, without the end of the turn."""
        asked: Message = {"role": "user", "content": _STANDIN}
        turn = {"role": "assistant", "content": "", "tool_calls": [call(name, arguments, 0)]}
        before, after = self._render([asked], prompted=True), self._render([asked, turn], prompted=False)
        if not after.startswith(before):  # the generation prompt is not part of a finished turn
            before = after[: after.rfind(_STANDIN) + len(_STANDIN)]
        written = after[len(before) :]
        end = self._end_of_turn(written, 0)
        return written if end is None else written[: end.start()]

    def _behind(self, messages: Sequence[Message]) -> tuple[str, str]:
        """Return (the end of a turn, the text from there to the next turn) if these messages follow the turn."""
        turn: dict[str, Any] = {"role": "assistant", "content": _STANDIN}
        called = sum(message["role"] == "tool" for message in messages)
        if called:
            messages = [{**message, **_named(message, number)} for number, message in enumerate(messages)]
            names = [message["name"] for message in messages if message["role"] == "tool"]
            turn["tool_calls"] = [call(name, {_STANDIN: _STANDIN}, number) for number, name in enumerate(names)]
        text = self._render([_ASKED, turn, *messages], prompted=True)
        at = text.rfind(_STANDIN)
        if at < 0:
            raise Unusable("the chat template leaves out what the model said")
        said = at + len(_STANDIN)
        end = self._end_of_turn(text, said)
        if end is None and called:
            raise Unusable("nothing ends a turn with tool calls")
        if end is None:
            return "", text[said:]
        return end[0] if called else text[said : end.end()], text[end.end() :]

    def _end_of_turn(self, text: str, begin: int) -> re.Match[str] | None:
        """Return the template's end of a turn: an EOS, or with channels the end of a message."""
        tokenizer = self.renderer.tokenizer
        ends = {*self.eos_ids, *([int(tokenizer.convert_tokens_to_ids(END))] if self.channels else [])}  # type: ignore
        names = eos_pattern(tokenizer, ends)
        return None if names is None else names.search(text, begin)

    def _render_as_drawn(self, messages: Sequence[Message]) -> str:
        """Return the text of a conversation up to the next answer. A turn in channels whose calls cannot be read has
        all its text as content, which templates refuse: render a call instead, and replace it by that text."""
        talk, drawn = list(messages), dict[str, str]()
        for place, message in enumerate(messages):
            if not self.channels or message["role"] != "assistant" or MESSAGE not in str(message["content"]):
                continue
            name, arguments = str(messages[place + 1].get("name", UNKNOWN)), {_STANDIN: place}
            talk[place] = {"role": "assistant", "content": "", "tool_calls": [call(name, arguments, 0)]}
            drawn[self.turn_that_calls(name, arguments)] = message["content"]
        text = self._render(talk, prompted=True)
        for written, said in drawn.items():
            text = text.replace(written, said)
        return text

    def _render(self, messages: Sequence[Message], *, prompted: bool) -> str:
        return self.renderer.render(messages, add_generation_prompt=prompted, tools=self.tools or None)


def call(name: str, arguments: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return a tool call in the form of chat templates. Its identifier has the nine letters that Mistral requires."""
    return {"type": "function", "id": call_id(number), "function": {"name": name, "arguments": dict(arguments)}}


def call_id(number: int) -> str:
    return f"call{number % 100_000:05d}"


def _named(message: Message, number: int) -> dict[str, Any]:
    if message["role"] != "tool":
        return {}
    return {"tool_call_id": message.get("tool_call_id", call_id(number)), "name": message.get("name", UNKNOWN)}


def _turn(reasoning: str, answer: str, *, channels: bool, calls: bool) -> tuple[dict[str, Any], str]:
    """Return a turn of the policy as a message, and as it is sampled; with `calls`, up to the calls."""
    if not channels:
        content = f"<think>\n{reasoning}\n</think>\n\n{answer}" if reasoning else answer
        return {"role": "assistant", "content": content}, content
    if calls:
        return {"role": "assistant", "content": "", "thinking": answer}, ANALYSIS + answer + NEXT
    thought = ANALYSIS + reasoning + NEXT if reasoning else ""
    return {"role": "assistant", "content": answer, "thinking": reasoning}, thought + FINAL + answer
