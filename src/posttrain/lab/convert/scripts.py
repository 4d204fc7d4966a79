"""Reads settings from a Python script. The script is parsed and never run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from posttrain.errors import ConfigError
from posttrain.lab.convert.records import FORMS, LORA, TRL, Given, Source, Unread, nothing_found
from posttrain.lab.convert.syntax import Script


def of_script(text: str, path: Path) -> Source:
    try:
        tree = ast.parse(text, str(path))
    except (SyntaxError, ValueError) as error:
        raise ConfigError(given=f"{path} is not Python: {error}", allowed="a script that Python can parse") from None
    script = Script(tree)
    configs = [call for call in script.calls if script.form_of(call) not in (None, LORA)]
    if not configs and any(script.called(call) in ("TrlParser", "HfArgumentParser") for call in script.calls):
        raise ConfigError(
            given=f"{path} takes its settings from its command line",
            allowed="a file that holds the settings",
            fix="Put the command into a file, and convert this file: posttrain convert command.sh",
        )
    if not configs:
        looked_for = f"a call of {', '.join(form for form in FORMS[TRL] if form.isidentifier() and form != LORA)}"
        raise nothing_found(path, looked_for, "a script")
    return _Reading(script, path, configs).source


class _Reading:
    """The settings of the last trainer in a script, and of the config that it is given."""

    def __init__(self, script: Script, path: Path, configs: list[ast.Call]) -> None:
        self.script, self.path = script, path
        trainers = [call for call in script.calls if self._is_trainer(call)]
        config = next((c for trainer in reversed(trainers) if (c := self._config_of(trainer))), configs[-1])
        own = [trainer for trainer in trainers if self._config_of(trainer) is config] or trainers
        form = script.form_of(config) or ""
        self.source = Source(TRL, form, self._unnamed(config) | script.arguments(config))
        self._unread_changes(config)
        self.source.remarks += [
            (c.lineno, f"a second {script.form_of(c)}, which is ignored") for c in configs if c is not config
        ]
        others = [trainer for trainer in trainers if trainer is not own[-1]]
        for other in others:
            told = f"a second trainer, {script.called(other)}: it is not in this config; convert its part on its own"
            self.source.to_do.append((other.lineno, told))
        self._adapters(others)
        self._own_code(config, "the config")
        if own:
            self._trainer(own[-1])
            if self._config_of(own[-1]) is not config:
                told = (
                    f"the config of {script.called(own[-1])} is known only when the script runs; the settings below are"
                )
                self.source.to_do.append((own[-1].lineno, f"{told} those of line {config.lineno}: compare them"))
        self._sampled()

    def _unnamed(self, config: ast.Call) -> dict[str, Given]:
        """Return the first argument of a config if it has no name: the output folder."""
        given = (Given(self.script.value(node), node.lineno) for node in config.args)
        return dict(zip(("output_dir",), given, strict=False))

    def _is_trainer(self, call: ast.Call) -> bool:
        return any(re.fullmatch(r"\w*Trainer", name) for name in self.script.bases(self.script.called(call)))

    def _config_of(self, trainer: ast.Call) -> ast.Call | None:
        """Return the call that creates a trainer's config, if the script has one."""
        nodes = [self.script.resolved(node) for _, node in self._named(trainer, [])]
        made = (node for node in nodes if isinstance(node, ast.Call))
        return next((node for node in made if self.script.form_of(node) not in (None, LORA)), None)

    def _adapters(self, others: list[ast.Call]) -> None:
        """Take the LoraConfig of the script, unless it belongs to another trainer."""
        script = self.script
        theirs = [script.resolved(k.value) for trainer in others for k in trainer.keywords if k.arg == "peft_config"]
        for call in script.calls:
            if script.form_of(call) == LORA and not any(call is node for node in theirs):
                self.source.parts.append(LORA)
                self._unread_changes(call)
                self.source.settings |= {f"{LORA}.{name}": given for name, given in script.arguments(call).items()}

    def _unread_changes(self, config: ast.Call) -> None:
        """Say which statements change a config, or a dict that it is made of, in a way that is not read."""
        made = [config, *(self.script.resolved(k.value) for k in config.keywords if k.arg is None)]
        for change in (change for node in made for change in self.script.changes_of(node)):
            if change.key is None:
                self.source.to_do.append((change.line, f"{_short(change.text)} may change settings, and was not read"))
        for node in config.args[1:]:
            told = f"the argument {_short(ast.unparse(node))} has no name, and was not read"
            self.source.to_do.append((node.lineno, told))
        for keyword in config.keywords:
            if keyword.arg is None and not isinstance(self.script.value(keyword.value, reader=config), dict):
                told = f"**{ast.unparse(keyword.value)} is known only when the script runs: add its settings"
                self.source.to_do.append((keyword.value.lineno, told))

    def _sampled(self) -> None:
        """Take `generation_kwargs` of a loop around PPOTrainer.generate."""
        node = self.script.resolved(ast.Name("generation_kwargs"))
        if isinstance(node, ast.Dict) and isinstance(given := self.script.value(node), dict):
            told = {name: Given(value, node.lineno) for name, value in given.items()}
            self.source.settings = told | self.source.settings

    # --- the trainer ---

    def _trainer(self, trainer: ast.Call) -> None:
        source, script = self.source, self.script
        source.settings = self._given_to(trainer) | source.settings
        if any(f"{self.path}:" in str(g.value) for g in source.settings.values()):
            why = "imports TRL" if script.guarded else "starts training"
            told = f"importing this file {why}: move its rewards to a separate file, and name that file in rewards"
            (source.remarks if script.guarded else source.to_do).append((trainer.lineno, told))
        for change in script.changes_of(trainer):
            if change.key or not isinstance(change.value, ast.Call) or change.text != ast.unparse(change.value):
                source.to_do.append((change.line, f"{_short(change.text)} changes the trainer, and was not read"))
        self._own_code(trainer, "the trainer")

    def _own_code(self, call: ast.Call, what: str) -> None:
        """Say which functions and fields a class of the script adds to TRL's."""
        for name in self.script.bases(self.script.called(call)):
            if name in self.script.classes:
                body = self.script.classes[name].body
                changed = [n.name for n in body if isinstance(n, ast.FunctionDef)]
                changed += [ast.unparse(n.target) for n in body if isinstance(n, ast.AnnAssign)]
                told = f"{name} changes {what} in code ({', '.join(changed) or 'its fields'}), which is not read"
                self.source.to_do.append((call.lineno, told))

    def _named(self, trainer: ast.Call, order: list[str]) -> Iterator[tuple[str, ast.expr]]:
        """Yield the names and values of a trainer's arguments; `**` for a dict that is not read. `order` has the names
        of those that are given without one."""
        for place, node in enumerate(trainer.args):
            yield (order[place] if place < len(order) else f"argument {place + 1}"), node
        for keyword in trainer.keywords:
            node = self.script.resolved(keyword.value)
            if keyword.arg is not None:
                yield keyword.arg, keyword.value
            elif self.script.changes_of(node):
                yield "**", keyword.value
            elif isinstance(node, ast.Dict):
                yield from ((str(self.script.value(k)), v) for k, v in zip(node.keys, node.values, strict=True) if k)
            elif isinstance(node, ast.Call) and self.script.called(node) == "dict":
                yield from ((k.arg, k.value) for k in node.keywords if k.arg)
            else:
                yield "**", keyword.value

    def _given_to(self, trainer: ast.Call) -> dict[str, Given]:
        """Return the arguments of a trainer other than its config: models, data and rewards."""
        given: dict[str, Given] = {}
        for name, node in self._named(trainer, FORMS[TRL][self.source.form].get("order", [])):
            line = node.lineno
            if name == "**":
                told = f"**{ast.unparse(node)} is known only when the script runs: add its settings"
                self.source.to_do.append((line, told))
            elif name in _MODELS:
                given |= self._model(_MODELS[name], node, line)
            elif name in ("train_dataset", "dataset", "eval_dataset"):
                given |= self._data(node, line, held_out=name == "eval_dataset")
            elif name in _REWARDS:
                given["reward_funcs"] = Given(self._rewards(node), line)
            elif name not in _READ_ELSEWHERE:
                told = f"{name} = {_short(ast.unparse(node))} is code, and was not taken over"
                self.source.remarks.append((line, told))
        return given

    def _model(self, name: str, node: ast.expr, line: int) -> dict[str, Given]:
        """Return the name of a model, with the arguments of `from_pretrained`."""
        node = self.script.resolved(node)
        if isinstance(node, ast.Constant) and node.value is None:
            return {}
        if isinstance(node, ast.Call) and self.script.called(node) == "create_reference_model":
            return {}
        if isinstance(node, ast.Call) and self.script.called(node) == "from_pretrained":
            beside = self.script.arguments(node)
            path = beside.pop("pretrained_model_name_or_path", None)
            path = Given(self.script.value(node.args[0]), node.lineno) if node.args else path
            prefix = "" if name == "model_name_or_path" else f"{name}_"
            told = {f"{prefix}{key}": given for key, given in beside.items()}
            return told | {name: path or Given(Unread(ast.unparse(node)), node.lineno)}
        return {name: Given(self.script.value(node), line)}

    # --- data ---

    def _data(self, node: ast.expr, line: int, *, held_out: bool) -> dict[str, Given]:
        """Find the load_dataset call behind an expression, and remark if the script changes its rows."""
        names = ("eval_dataset", "eval_split") if held_out else ("dataset_name", "dataset_train_split")
        behind = list(self.script.behind(node))
        calls = [step for step in behind if isinstance(step, ast.Call)]
        load = next((call for call in calls if self.script.called(call) == "load_dataset"), None)
        if load is None:
            return {names[0]: Given(Unread(ast.unparse(node)), line)}
        given: dict[str, Given] = {}
        halved = next((call for call in calls if self.script.called(call) == "train_test_split"), None)
        if halved is not None:
            share = self.script.value(halved.args[0]) if halved.args else 0.25
            given["test_split_size"] = self.script.arguments(halved).get("test_size", Given(share, halved.lineno))
            if held_out:
                return given
        changes = [self.script.called(call) for call in calls if call not in (load, halved)]
        changes += [change.text for change in self.script.changes_of(load) if change.key]
        if changes:
            told = f"the script changes the rows ({', '.join(changes)}); write them to a file for data.train"
            self.source.to_do.append((load.lineno, told))
        return given | self._loaded(load, self._split(behind, load), names, held_out=held_out)

    def _loaded(self, load: ast.Call, key: Any, names: tuple[str, str], *, held_out: bool) -> dict[str, Given]:
        """Return the data set that load_dataset names, and its split. `key` is the split that is chosen from it."""
        arguments = self.script.arguments(load)
        split = key if key is not None else arguments.get("split", Given(None)).value
        whole, _, part = split.partition("[") if isinstance(split, str) else ("", "", "")
        named = [self.script.value(argument) for argument in load.args[:2]]
        path = arguments.get("data_files", Given(":".join(map(str, named)) or Unread(ast.unparse(load)))).value
        if isinstance(path, dict):
            path = path.get(whole, Unread(f"data_files[{whole or ast.unparse(load)}]"))
            whole = ""  # the file holds only this split
        given = {names[0]: Given(path, load.lineno)}
        if isinstance(split, Unread):
            given[names[1]] = Given(split, load.lineno)
        elif whole and whole != ("test" if held_out else "train"):
            given[names[1]] = Given(whole, load.lineno)
        if (rows := re.fullmatch(r":(\d+)\]", part)) and not held_out:
            given["max_rows"] = Given(int(rows[1]), load.lineno)
        elif part:
            self.source.remarks.append((load.lineno, f"split {split}: write those rows to a file"))
        return given

    def _split(self, behind: list[ast.Call | ast.Subscript], load: ast.Call) -> Any:
        """Return `train` for `dataset["train"]`, the key that is applied to load_dataset itself."""
        before = behind[: next(place for place, step in enumerate(behind) if step is load)]
        return self.script.value(before[-1].slice) if before and isinstance(before[-1], ast.Subscript) else None

    # --- rewards ---

    def _rewards(self, node: ast.expr) -> list[Any]:
        node = self.script.resolved(node)
        entries = node.elts if isinstance(node, (ast.List, ast.Tuple)) else [node]
        return [self._reward(entry) for entry in entries]

    def _reward(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Name) and node.id in self.script.functions:
            return {"function": f"{self.path}:{node.id}"}
        if isinstance(node, ast.Name) and node.id in self.script.imported:
            return {"function": self.script.imported[node.id]}
        model = self._model("reward", node, node.lineno).get("reward")
        return {"model": model.value} if model and isinstance(model.value, str) else Unread(ast.unparse(node))


_MODELS = {
    "model": "model_name_or_path", "policy": "model_name_or_path", "ref_model": "ref_model", "ref_policy": "ref_model",
    "value_model": "value_model_path",
}  # fmt: skip
_REWARDS = {"reward_funcs", "reward_model", "reward_models"}
_READ_ELSEWHERE = {"args", "config", "peft_config", "processing_class", "tokenizer", "data_collator", ""}


def _short(text: str) -> str:
    """Return code in one line of at most 100 characters."""
    text = " ".join(text.split())
    return text if len(text) <= 100 else f"{text[:97]}..."
