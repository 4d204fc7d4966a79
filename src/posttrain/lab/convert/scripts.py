"""Reads settings from a Python script. The script is parsed and never run."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from posttrain.config.text import show
from posttrain.errors import ConfigError
from posttrain.lab.convert.records import FORMS, LORA, TRL, Given, Source, Unread, nothing_found


def of_script(text: str, path: Path) -> Source:
    try:
        tree = ast.parse(text, str(path))
    except (SyntaxError, ValueError) as error:
        raise ConfigError(given=f"{path} is not Python: {error}", allowed="a script that Python can parse") from None
    script = _Script(tree, path)
    calls = [(call, form) for call in script.calls if (form := script.form_of(call))]
    configs = [(call, form) for call, form in calls if form != LORA]
    if not configs and any(script.called(call) in ("TrlParser", "HfArgumentParser") for call in script.calls):
        raise ConfigError(
            given=f"{path} takes its settings from its command line",
            allowed="a file that holds the settings",
            fix="Put the command into a file, and convert this file: posttrain convert command.sh",
        )
    if not configs:
        looked_for = f"a call of {', '.join(form for form in FORMS[TRL] if form.isidentifier() and form != LORA)}"
        raise nothing_found(path, looked_for)
    call, form = configs[-1]
    source = Source(TRL, form, script.arguments(call))
    for other, part in calls:
        if part == LORA:
            source.parts.append(LORA)
            source.settings |= {f"{LORA}.{name}": given for name, given in script.arguments(other).items()}
    source.remarks += [(c.lineno, f"a second {f}, which is ignored") for c, f in configs[:-1]]
    for trainer in script.calls:
        if re.fullmatch(r"\w*Trainer", script.called(trainer)):
            source.settings = script.given_to(trainer, source) | source.settings
            if any(f"{path}:" in str(g.value) for g in source.settings.values()):
                why = "imports TRL" if script.guarded else "starts training"
                told = f"importing this file {why}: move its rewards to a separate file, and name that file in rewards"
                (source.remarks if script.guarded else source.to_do).append((trainer.lineno, told))
    sampled = script.names.get("generation_kwargs")
    if isinstance(sampled, ast.Dict) and isinstance(given := script.value(sampled), dict):
        source.settings = {name: Given(value, sampled.lineno) for name, value in given.items()} | source.settings
    return source


class _Script:
    """The syntax tree of a script, with the values assigned to its names."""

    def __init__(self, tree: ast.Module, path: Path) -> None:
        self.path = path
        self.calls = sorted((n for n in ast.walk(tree) if isinstance(n, ast.Call)), key=lambda call: call.lineno)
        self.assigned: defaultdict[str, list[ast.expr]] = defaultdict(list)
        self.functions = {n.name for n in tree.body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))}
        self.imported: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                self.assigned[node.targets[0].id].append(node.value)
            elif isinstance(node, ast.ImportFrom) and node.module:
                self.imported |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        self.names = {name: values[-1] for name, values in self.assigned.items()}
        self.guarded = any(isinstance(node, ast.If) and "__name__" in ast.unparse(node.test) for node in tree.body)

    def called(self, call: ast.Call) -> str:
        """Return the last part of the called function's name. Import aliases are resolved."""
        name = ast.unparse(call.func)
        return self.imported.get(name, name).rpartition(".")[2]

    def form_of(self, call: ast.Call) -> str | None:
        """Return the form of forms.yaml that a call creates. A form that `known_by` recognises takes precedence."""
        name, given = self.called(call), {keyword.arg for keyword in call.keywords}
        older = (
            form for form, told in FORMS[TRL].items() if form.startswith(f"{name} ") and given & {*told["known_by"]}
        )
        return next(older, name if name in FORMS[TRL] else None)

    def arguments(self, call: ast.Call) -> dict[str, Given]:
        """Return the keyword arguments of a call, including `**` of a dict of literals."""
        given: dict[str, Given] = {}
        for keyword in call.keywords:
            value = self.value(keyword.value)
            if keyword.arg is not None:
                given[keyword.arg] = Given(value, keyword.value.lineno)
            elif isinstance(value, dict):
                given |= {str(name): Given(inner, keyword.value.lineno) for name, inner in value.items()}
        return given

    def value(self, node: ast.expr, seen: frozenset[str] = frozenset()) -> Any:
        """Return the literal value of an expression, following assigned names; otherwise its source as Unread."""
        if isinstance(node, ast.Name) and node.id in self.names:
            return self.value(self.names[node.id], seen | {node.id}) if node.id not in seen else Unread(node.id)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):  # config.model_name
            made = self.names.get(node.value.id)
            if isinstance(made, ast.Call) and self.form_of(made):
                told = (keyword.value for keyword in made.keywords if keyword.arg == node.attr)
                return next((self.value(value, seen) for value in told), Unread(ast.unparse(node)))
            if node.value.id == "torch":
                return node.attr
        if isinstance(node, ast.Call) and self.called(node) == "dict" and not node.args:
            return {keyword.arg: self.value(keyword.value, seen) for keyword in node.keywords if keyword.arg}
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Add, ast.FloorDiv)):
            left, right = self.value(node.left, seen), self.value(node.right, seen)
            if isinstance(left, int) and isinstance(right, int):
                made = {ast.Mult: left * right, ast.Add: left + right, ast.FloorDiv: left // (right or 1)}
                return made[type(node.op)]
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return Unread(ast.unparse(node))

    def given_to(self, trainer: ast.Call, source: Source) -> dict[str, Given]:
        """Return the arguments of a trainer other than its config: models, data and rewards."""
        given: dict[str, Given] = {}
        for keyword in trainer.keywords:
            name, node, line = keyword.arg or "", keyword.value, keyword.value.lineno
            if name in _MODELS:
                given |= self._model(_MODELS[name], node, line)
            elif name in ("train_dataset", "dataset", "eval_dataset"):
                given |= self._data(node, line, source, held_out=name == "eval_dataset")
            elif name in _REWARDS:
                given["reward_funcs"] = Given(self._rewards(node), line)
            elif name not in _READ_ELSEWHERE:
                source.remarks.append((line, f"{name} = {_short(ast.unparse(node))} is code, and was not taken over"))
        positional = [node for node in trainer.args if not self._is_config(node)]  # PPOTrainer(config, model, ...)
        for name, node in zip(("model_name_or_path", "ref_model"), positional, strict=False):
            given |= self._model(name, node, node.lineno)
        return given

    def _is_config(self, node: ast.expr) -> bool:
        node = self.names.get(node.id, node) if isinstance(node, ast.Name) else node
        return isinstance(node, ast.Call) and self.form_of(node) is not None

    def _model(self, name: str, node: ast.expr, line: int) -> dict[str, Given]:
        node = self.names.get(node.id, node) if isinstance(node, ast.Name) else node
        if isinstance(node, ast.Constant) and node.value is None:
            return {}
        if isinstance(node, ast.Call) and self.called(node) in ("from_pretrained", "create_reference_model"):
            known = {
                k: v for k, v in self.arguments(node).items() if k in ("torch_dtype", "dtype", "attn_implementation")
            }
            beside = known if name == "model_name_or_path" else {}
            copy = self.called(node) == "create_reference_model"
            return {} if copy or not node.args else beside | {name: Given(self.value(node.args[0]), node.lineno)}
        return {name: Given(self.value(node), line)}

    def _data(self, node: ast.expr, line: int, source: Source, *, held_out: bool) -> dict[str, Given]:
        """Find the load_dataset call behind an expression, and remark if the script changes its rows."""
        names = ("eval_dataset", "eval_split") if held_out else ("dataset_name", "dataset_train_split")
        calls = list(self._behind(node))
        load = next((call for call in calls if self.called(call) == "load_dataset"), None)
        if load is None:
            return {names[0]: Given(Unread(ast.unparse(node)), line)}
        given: dict[str, Given] = {}
        halved = next((call for call in calls if self.called(call) == "train_test_split"), None)
        if halved is not None:
            share = self.arguments(halved).get("test_size", Given(0.25))
            given["test_split_size"] = Given(share.value, halved.lineno)
            if held_out:
                return given
        changes = [self.called(call) for call in calls if call not in (load, halved)]
        if changes:
            told = f"the script changes the rows ({', '.join(changes)}); write them to a file for data.train"
            source.to_do.append((load.lineno, told))
        arguments = self.arguments(load)
        named = [self.value(argument) for argument in load.args[:2]]
        path = arguments.get("data_files", Given(":".join(map(str, named)) or Unread(ast.unparse(load))))
        given[names[0]] = Given(path.value, load.lineno)
        split = (self._split(node) if halved is None else None) or arguments.get("split", Given(None)).value
        if isinstance(split, str):
            whole, _, part = split.partition("[")
            given |= {names[1]: Given(whole, load.lineno)} if whole != ("test" if held_out else "train") else {}
            if (rows := re.fullmatch(r":(\d+)\]", part)) and not held_out:
                given["max_rows"] = Given(int(rows[1]), load.lineno)
            elif part:
                source.remarks.append((load.lineno, f"split {split}: write those rows to a file"))
        return given

    def _behind(self, node: ast.expr, seen: frozenset[str] = frozenset()) -> Iterator[ast.Call]:
        """Yield load_dataset and the methods called on its result, last call first."""
        if isinstance(node, ast.Name) and node.id not in seen:
            for value in reversed(self.assigned.get(node.id, [])):
                yield from self._behind(value, seen | {node.id})
        elif isinstance(node, ast.Subscript):
            yield from self._behind(node.value, seen)
        elif isinstance(node, ast.Call):
            yield node
            if isinstance(node.func, ast.Attribute):
                yield from self._behind(node.func.value, seen)

    def _split(self, node: ast.expr) -> str | None:
        """Return `train` for `dataset["train"]`."""
        node = self.names.get(node.id, node) if isinstance(node, ast.Name) else node
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            return str(node.slice.value)
        if isinstance(node, ast.Subscript) and isinstance(value := self.value(node.slice), str):
            return value
        return None

    def _rewards(self, node: ast.expr) -> list[Any]:
        node = self.names.get(node.id, node) if isinstance(node, ast.Name) else node
        entries = node.elts if isinstance(node, (ast.List, ast.Tuple)) else [node]
        return [self._reward(entry) for entry in entries]

    def _reward(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Name) and node.id in self.functions:
            return {"function": f"{self.path}:{node.id}"}
        if isinstance(node, ast.Name) and node.id in self.imported:
            return {"function": self.imported[node.id]}
        model = self._model("reward", node, node.lineno).get("reward")
        return {"model": model.value} if model and isinstance(model.value, str) else Unread(ast.unparse(node))


_MODELS = {"model": "model_name_or_path", "ref_model": "ref_model", "value_model": "value_model_path"}
_REWARDS = {"reward_funcs", "reward_model", "reward_models"}
_READ_ELSEWHERE = {"args", "config", "peft_config", "processing_class", "tokenizer", "data_collator", ""}


def _short(text: str) -> str:
    return show(text).strip("'\"")
