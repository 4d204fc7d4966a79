"""Scripts of TRL: which trainer is read, where its arguments come from, and what is left to the user."""

from __future__ import annotations

import pytest
from tests.catalogue import catalogue

from posttrain.errors import ConfigError
from posttrain.lab.convert import convert
from posttrain.lab.convert.records import FORMS

HEAD = "from datasets import load_dataset\nfrom trl import *\n"


def converted(tmp_path, text):
    path = tmp_path / "train.py"
    path.write_text(HEAD + text)
    return convert(path, rows=800)


def at(conversion, key):
    node = conversion.settings
    for part in key.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    return node


def said(lines, text):
    return any(text in line for line in lines)


# --- several trainers -------------------------------------------------------------------------------------------------

ONE = {
    "DPO": "DPOTrainer(model='{m}', args={args}, train_dataset=load_dataset('{m}/data', split='train')).train()\n",
    "SFT": "SFTTrainer(model='{m}', args={args}, train_dataset=load_dataset('{m}/data', split='train')).train()\n",
    "Reward": "RewardTrainer('{m}', {args}, train_dataset=load_dataset('{m}/data', split='train')).train()\n",
    "GRPO": "GRPOTrainer('{m}', 'rm', {args}, load_dataset('{m}/data', split='train')).train()\n",
}


@catalogue("first", ONE)
@catalogue("last", ONE)
@catalogue("named", [False, True])
def test_the_last_trainer_is_read_with_its_own_config(first, last, named, tmp_path):
    made = [f"{form}Config('{m}', max_steps={n})" for form, m, n in ((first, "one", 1), (last, "two", 2))]
    text = f"b = {made[1]}\na = {made[0]}\n" if named else ""  # the config of the first trainer is the last one
    args = ("a", "b") if named else made
    text += ONE[first].format(m="one", args=args[0]) + ONE[last].format(m="two", args=args[1])
    conversion = converted(tmp_path, text)
    assert conversion.form == f"{last}Config"
    found = [at(conversion, key) for key in ("model.path", "data.train", "output", "train.steps")]
    assert found == ["two", "two/data", "two", 2]
    assert said(conversion.open, f"a second trainer, {first}Trainer")


def test_adapters_of_another_trainer_are_not_taken(tmp_path):
    text = "SFTTrainer('one', args=SFTConfig(max_steps=1), train_dataset=x, peft_config=LoraConfig(r=4))\n"
    text += ONE["DPO"].format(m="two", args="DPOConfig(max_steps=2)")
    assert at(converted(tmp_path, text), "lora") is None


def test_settings_without_a_name_are_said_but_the_folder_is_known(tmp_path):
    conversion = converted(tmp_path, ONE["DPO"].format(m="two", args="DPOConfig('runs/x', 3, max_steps=2)"))
    assert at(conversion, "output") == "runs/x"
    assert said(conversion.open, "line 3: the argument 3 has no name")


def test_a_single_trainer_is_ready(tmp_path):
    assert converted(tmp_path, ONE["DPO"].format(m="two", args="DPOConfig(max_steps=2)")).open == ()


# --- arguments without a name -----------------------------------------------------------------------------------------

VALUES = {
    "model": "'a/b'", "ref_model": "None", "reward_funcs": "'rm'",
    "train_dataset": "load_dataset('x/y', split='train')",
    "eval_dataset": "load_dataset('x/z', split='test')", "processing_class": "tok", "data_collator": "None",
    "reward_model": "'rm'", "value_model": "'vm'", "tokenizer": "tok", "dataset": "load_dataset('x/y', split='train')",
}  # fmt: skip
ORDERED = [form for form, told in FORMS["TRL"].items() if "order" in told]


@catalogue("form", ORDERED)
def test_arguments_mean_the_same_with_and_without_names(form, tmp_path):
    """The order is that of TRL 1.16; for PPO, of TRL 0.12 and 0.11."""
    config = form.partition(" ")[0]
    sizes = (
        "steps=2, ppo_epochs=1" if "until" in form else "max_steps=2" if config != "PPOConfig" else "total_episodes=8"
    )
    order = FORMS["TRL"][form]["order"]
    values = [VALUES.get(name, f"{config}({sizes})") for name in order]
    told = []
    for given in (values, [f"{name}={value}" for name, value in zip(order, values, strict=True)]):
        told.append(converted(tmp_path, f"{config.removesuffix('Config')}Trainer({', '.join(given)})\n").settings)
    assert told[0] == told[1]
    assert (told[0]["model"]["path"], told[0]["data"]["train"]) == ("a/b", "x/y")
    assert ("rewards" in told[0]) == bool({"reward_funcs", "reward_model"} & {*order})
    assert "reference" not in told[0]


def test_every_form_with_a_trainer_has_an_order():
    assert [form for form, told in FORMS["TRL"].items() if "sizes" in told and "order" not in told] == []


@pytest.mark.parametrize("given", ["**told", "**dict(model='a/b', args=DPOConfig(max_steps=2), train_dataset=d)"])
def test_arguments_in_a_dict_are_read(given, tmp_path):
    text = "d = load_dataset('x/y', split='train')\ntold = {'model': 'a/b', 'args': DPOConfig(max_steps=2), "
    conversion = converted(tmp_path, f"{text}'train_dataset': d}}\nDPOTrainer({given})\n")
    assert (at(conversion, "model.path"), at(conversion, "data.train")) == ("a/b", "x/y")


# --- settings that are not in the call of the config ------------------------------------------------------------------

TRAINER = "DPOTrainer('a/b', None, args, train_dataset=load_dataset('x/y', split='train'))\n"


@catalogue(
    "text, rate",
    [
        ("args = DPOConfig(max_steps=2)\nargs.learning_rate = 3e-4\n", 3e-4),
        ("args = DPOConfig(max_steps=2, learning_rate=1e-6)\nargs.learning_rate = 3e-4\n", 3e-4),
        ("args = DPOConfig(max_steps=2)\nif __name__ == '__main__':\n    args.learning_rate = 3e-4\n", 3e-4),
        ("told = {'max_steps': 2}\ntold['learning_rate'] = 3e-4\nargs = DPOConfig(**told)\n", 3e-4),
        ("told = dict(max_steps=2)\ntold['learning_rate'] = 3e-4\nargs = DPOConfig(**told)\n", 3e-4),
        ("rate: float = 3e-4\nargs = DPOConfig(max_steps=2, learning_rate=rate)\n", 3e-4),
        ("rate, beta = 3e-4, 0.2\nargs = DPOConfig(max_steps=2, learning_rate=rate)\n", 3e-4),
        ("class Settings:\n    rate = 1\nrate = 3e-4\nargs = DPOConfig(max_steps=2, learning_rate=rate)\n", 3e-4),
        ("args = DPOConfig(max_steps=2)\nif big:\n    args.learning_rate = 3e-4\n", None),
        ("args = DPOConfig(max_steps=2)\nargs.learning_rate = 1e-4\nargs.learning_rate = 3e-4\n", None),
        ("args = DPOConfig(max_steps=2, learning_rate=1e-4)\nargs.learning_rate *= 3\n", None),
        ("rate = 1e-6\nif big:\n    rate = 3e-4\nargs = DPOConfig(max_steps=2, learning_rate=rate)\n", None),
        ("rate = 1e-6\nrate += 3e-4\nargs = DPOConfig(max_steps=2, learning_rate=rate)\n", None),
        ("for rate in (1e-6, 3e-4):\n    args = DPOConfig(max_steps=2, learning_rate=rate)\n", None),
        ("rate, beta = told()\nargs = DPOConfig(max_steps=2, learning_rate=rate)\n", None),
        ("rate = 1e-6\ndef f(rate):\n    return DPOConfig(max_steps=2, learning_rate=rate)\nargs = f(3e-4)\n", None),
    ],
)
def test_a_setting_is_the_one_that_the_trainer_gets_or_is_asked_for(text, rate, tmp_path):
    conversion = converted(tmp_path, text + TRAINER)
    assert at(conversion, "train.learning_rate") == rate
    assert said(conversion.open, "set train.learning_rate yourself") == (rate is None)


@pytest.mark.parametrize(
    "change",
    ["args.set_optimizer('sgd')", "setattr(args, 'beta', 0.3)", "told.update(beta=0.3)", "args.a.b = 3",
     "trainer.beta = 0.3", "trainer.args.beta = 0.3"],
)  # fmt: skip
def test_a_change_that_is_not_read_is_said(change, tmp_path):
    text = "told = dict(max_steps=2)\nargs = DPOConfig(**told)\ntrainer = "
    (left,) = converted(tmp_path, f"{text}{TRAINER}{change}\n").open
    assert left.startswith(f"line 6: {change}")
    assert "was not read" in left


@pytest.mark.parametrize(
    ("text", "beta"),
    [
        ("kw = {**base, 'max_steps': 5}\nkw['max_steps'] = 6\n", 0.1),
        ("kw = dict(**base, max_steps=5)\n", 0.1),
        ("kw = {**base}\nbase['beta'] = 0.3\n", 0.1),
        ("kw = dict(base)\n", None),
        ("kw = base\ndel kw['beta']\n", None),
        ("kw = dict(beta=0.2)\nold = kw.pop('beta')\n", None),
        ("kw = dict(beta=0.2)\ndef debug():\n    kw['beta'] = 5\n", None),
    ],
)
def test_settings_in_a_dict_are_all_read_or_asked_for(text, beta, tmp_path):
    conversion = converted(tmp_path, f"base = dict(beta=0.1)\n{text}args = DPOConfig(**kw)\n{TRAINER}")
    assert at(conversion, "algorithm.beta") == beta
    assert bool(conversion.open) == (beta is None)


def test_a_dict_that_changes_after_it_was_read_keeps_its_settings(tmp_path):
    text = f"kw = dict(beta=0.2)\nargs = DPOConfig(**kw)\nkw['beta'] = 5\n{TRAINER}"
    assert at(converted(tmp_path, text), "algorithm.beta") == 0.2


LOG = "def log(*given):\n    print(given)\n"


@pytest.mark.parametrize(
    "call",
    ["log(KW['beta'])", "log(KW['max_steps'], KW['beta'])", "log(x=KW['beta'])", "log(f'{KW}')", "log(KW['loss_type'])",
     "log(KW['missing'])", "log(KW[name])", "log(args.beta)", "log(args.output_dir)", "log(args.max_steps)",
     "logger.log(args)", "logger.log(KW)", "wandb.run.log(args, KW)", "done = log(args.beta)",
     "import logging\nlogger = logging.getLogger(__name__)\nlogger.setLevel(10)\nlogger.log(args)",
     "from x import Run\nwith Run(args) as run:\n    run.log(args)",
     "import wandb as w\nrun = w.init()\nrun.log(args)"],
)  # fmt: skip
@pytest.mark.parametrize(
    "made",
    ["dict(beta=0.2, max_steps=2, loss_type='sigmoid')", "{**dict(beta=0.2, max_steps=STEPS), 'loss_type': 'sigmoid'}"],
)
def test_a_plain_value_that_a_function_gets_changes_nothing(call, made, tmp_path):
    text = f"{LOG}STEPS = 2\nKW = {made}\nargs = DPOConfig(**KW)\n{call}\n{TRAINER}"
    conversion = converted(tmp_path, text)
    assert (at(conversion, "algorithm.beta"), at(conversion, "train.steps")) == (0.2, 2)
    assert conversion.open == ()


@pytest.mark.parametrize("part", ["kw['model_init_kwargs']", "kw['model_init_kwargs']['a']"])
def test_a_part_that_a_function_may_change_is_asked_for_alone(part, tmp_path):
    text = (
        f"{LOG}kw = dict(beta=0.2, max_steps=2, model_init_kwargs={{'a': {{}}}})\nlog({part})\nargs = DPOConfig(**kw)\n"
    )
    conversion = converted(tmp_path, text + TRAINER)
    assert at(conversion, "algorithm.beta") == 0.2
    assert said([*conversion.open, *map(str, conversion.notes)], f"model_init_kwargs = log({part})")


CHANGES = {
    "a second name": "again = args\nagain.beta = 0.9\n",
    "a third name": "again = args\nthird = again\nthird.beta = 0.9\n",
    "a list": "all_of_them = [args]\nall_of_them[0].beta = 0.9\n",
    "a loop": "for one in [args]:\n    one.beta = 0.9\n",
    "a function": "def patch(c):\n    c.beta = 0.9\npatch(args)\n",
    "a function by name": "def patch(c):\n    c.beta = 0.9\npatch(c=args)\n",
    "a function before it": "def patch(c):\n    c.beta = 0.9\n    return c\nother = patch(args)\n",
    "its vars": "def patch(c):\n    c['beta'] = 0.9\npatch(vars(args))\n",
    "a method of a known object": "class A:\n    def patch(self, c):\n        c.beta = 0.9\na = A()\na.patch(args)\n",
    "a method of its own": (
        "class A:\n    def patch(self, c):\n        c.beta = 0.9\n    def go(self):\n        self.patch(args)\n"
    ),
    "a method of a class": "class A:\n    def patch(c):\n        c.beta = 0.9\nA.patch(args)\n",
    "a method": "class A:\n    def patch(self, c):\n        c.beta = 0.9\nA().patch(args)\n",
    "its dict": "args.__dict__.update(beta=0.9)\n",
    "a key of its dict": "args.__dict__['beta'] = 0.9\n",
    "vars": "vars(args)['beta'] = 0.9\n",
    "vars and update": "vars(args).update(beta=0.9)\n",
    "object": "object.__setattr__(args, 'beta', 0.9)\n",
    "setattr": "setattr(args, 'beta', 0.9)\n",
    "its setattr": "args.__setattr__('beta', 0.9)\n",
    "a copy": "import dataclasses\nargs = dataclasses.replace(args, beta=0.9)\n",
    "a branch": "if big:\n    args.beta = 0.9\n",
    "a try": "try:\n    args.beta = 0.9\nexcept ValueError: ...\n",
    "twice": "args.beta = 0.8\nargs.beta = 0.9\n",
}


OWN = "class A:\n    def patch(self, c):\n        c.beta = 0.9\n"
CHANGES |= {
    f"a method of {what}": OWN + text
    for what, text in {
        "what `with` gives": "with A() as a:\n    a.patch(args)\n",
        "a second `with`": "a = None\nwith A() as a:\n    a.patch(args)\n",
        "what a function makes": "def make():\n    return A()\na = make()\na.patch(args)\n",
        "what a class makes": "a = A.create()\na.patch(args)\n",
        "a parameter": "def go(a):\n    a.patch(args)\n",
        "a parameter of lambda": "go = lambda a: a.patch(args)\n",
        "a name with two values": "a = None\na = A()\na.patch(args)\n",
        "one of a loop": "for a in [A()]:\n    a.patch(args)\n",
        "one of a comprehension": "[a.patch(args) for a in [A()]]\n",
        "an attribute": "class H:\n    def go(self):\n        self.a.patch(args)\n",
        "an attribute given later": "import shared\nshared.a = A()\nshared.a.patch(args)\n",
        "a value of a dict": "hs = {'x': A()}\nhs['x'].patch(args)\n",
        "a value that a dict gets": "hs = {}\nhs['x'] = A()\nhs['x'].patch(args)\n",
        "an element that a list gets": "hs = []\nhs.append(A())\nhs[0].patch(args)\n",
        "its base": "class B(A):\n    def go(self):\n        super().patch(args)\n",
        "what an imported function got": "import copy\na = copy.copy(A())\na.patch(args)\n",
        "what a pattern matches": "match made:\n    case A() as a:\n        a.patch(args)\n",
        "a global": "globals()['a'].patch(args)\n",
        "a class by a second name": "B = A\nB().patch(args)\n",
        "an object by a second name": "go = A().patch\ngo(args)\n",
    }.items()
}


@catalogue("way", CHANGES)
def test_a_config_that_may_have_changed_is_never_ready(way, tmp_path):
    text = f"args = DPOConfig('o', max_steps=5, beta=0.1)\n{CHANGES[way]}"
    assert converted(tmp_path, text + TRAINER).open
    inside = "\n    ".join(f"args = DPOConfig('o', max_steps=5, beta=0.1)\n{CHANGES[way]}{TRAINER}".splitlines())
    assert converted(tmp_path, f"def main():\n    {inside}\nmain()\n").open


@catalogue("way", [way for way in CHANGES if way not in ("its dict", "a key of its dict", "object")])
def test_a_dict_that_may_have_changed_is_never_ready(way, tmp_path):
    change = CHANGES[way].replace(".beta", "['beta']").replace("args", "kw").replace("dataclasses.replace", "dict")
    text = f"kw = dict(max_steps=5, beta=0.1)\n{change}args = DPOConfig('o', **kw)\n{TRAINER}"
    assert converted(tmp_path, text).open


@pytest.mark.parametrize(
    ("made", "args"),
    [
        ("args = DPOConfig(max_steps=5, beta=0.1)\nnew = dataclasses.replace(args, beta=0.5)\n", "new"),
        (
            "class A:\n    def __init__(self):\n        self.args = DPOConfig(beta=0.1, max_steps=5)\nme = A()\n",
            "me.args",
        ),
        ("args = DPOConfig(max_steps=5, beta=0.1)\n", "make()"),
        ("args = DPOConfig(max_steps=5, beta=0.1)\n", "told['args']"),
        ("def a():\n    args = DPOConfig(max_steps=5)\ndef b():\n    args = DPOConfig(max_steps=6)\n", "args"),
        ("args = DPOConfig(max_steps=5, beta=0.1)\n", "None"),
    ],
)
def test_a_trainer_whose_config_is_not_found_is_said(made, args, tmp_path):
    conversion = converted(tmp_path, made + TRAINER.replace("args", args, 1))
    assert said(conversion.open, "the config of DPOTrainer is known only when the script runs")


@pytest.mark.parametrize(
    ("before", "main", "after", "beta"),
    [
        ("", "", "", 0.1),
        ("kw['beta'] = 0.7\n", "", "", None),
        ("", "", "kw['beta'] = 0.7\n", None),
        ("", "", "if __name__ == '__main__':\n    kw['beta'] = 0.7\n", None),
        ("", "", "kw.pop('beta')\n", None),
        ("", "    kw['beta'] = 0.7\n", "", None),
    ],
)
def test_a_dict_of_the_script_that_a_function_reads(before, main, after, beta, tmp_path):
    """The lines after a function may run before its call."""
    text = (
        f"kw = dict(max_steps=5, beta=0.1)\n{before}def main():\n{main}    args = DPOConfig('o', **kw)\n    {TRAINER}"
    )
    conversion = converted(tmp_path, f"{text}{after}main()\n")
    assert at(conversion, "algorithm.beta") == beta
    assert bool(conversion.open) == (beta is None)


@pytest.mark.parametrize("base", ["DPOConfig", "trl.DPOConfig", "Base"])
def test_a_config_of_ones_own_is_read_and_said(base, tmp_path):
    text = "class Base(DPOConfig):\n    rate: float = 1\n" if base == "Base" else ""
    text += f"class Mine({base}):\n    beta: float = 0.5\n    def go(self): ...\nargs = Mine(max_steps=5)\n"
    conversion = converted(tmp_path, text + TRAINER)
    assert at(conversion, "train.steps") == 5
    assert said(conversion.open, "Mine changes the config in code (go, beta)")


@pytest.mark.parametrize(
    "text",
    [
        "kw = {}\nkw['kw'] = kw\nargs = DPOConfig(**kw)\n",
        "a = {}\nb = {**a}\na['b'] = b\nb['a'] = a\nargs = DPOConfig(**a)\n",
        "a = {'b': b}\nb = {'a': a}\nargs = DPOConfig(**a)\n",
        "args = DPOConfig(beta=args.beta)\n",
        "a = [a]\nargs = DPOConfig(beta=a)\n",
        "args = args\n",
    ],
)
def test_names_that_hold_themselves_end(text, tmp_path):
    assert converted(tmp_path, f"{text}DPOConfig(max_steps=5)\n{TRAINER}").form == "DPOConfig"


def test_a_part_of_a_value_that_only_a_run_tells_is_asked_for(tmp_path):
    text = "args = DPOConfig(max_steps=5, chat_template_kwargs={'enable_thinking': think()})\n"
    assert said(converted(tmp_path, text + TRAINER).open, "set model.chat_template_kwargs yourself")


def test_a_setting_of_another_config_is_read_only_if_it_stays(tmp_path):
    for change, beta in (("", 0.3), ("first.beta = 0.5\n", None)):
        text = f"first = SFTConfig(beta=0.3)\n{change}args = DPOConfig(max_steps=2, beta=first.beta)\n{TRAINER}"
        assert at(converted(tmp_path, text), "algorithm.beta") == beta


def test_a_script_without_a_config_is_not_told_to_use_as(tmp_path):
    with pytest.raises(ConfigError) as error:
        converted(tmp_path, "print('hello')\n")
    assert "--as" not in str(error.value)


def test_a_change_in_another_function_is_asked_for(tmp_path):
    text = f"args = DPOConfig(learning_rate=1e-5)\ndef debug():\n    args.learning_rate = 1\n{TRAINER}"
    assert said(converted(tmp_path, text).open, "set train.learning_rate yourself")


@pytest.mark.parametrize("call", ["trainer.train()", "print(args)", "trainer.save_model('x')", "model.eval()"])
def test_a_call_that_changes_no_setting_is_passed_over(call, tmp_path):
    assert converted(tmp_path, f"args = DPOConfig(max_steps=2)\ntrainer = {TRAINER}{call}\n").open == ()


@pytest.mark.parametrize(
    "text", ["class Mine(DPOTrainer):\n    def compute_loss(self): ...\n",
             "class Base(DPOTrainer):\n    beta = 1\nclass Mine(Base):\n    def compute_loss(self): ...\n"],
)  # fmt: skip
def test_a_trainer_of_ones_own_is_said(text, tmp_path):
    text += "args = DPOConfig(max_steps=2)\n" + TRAINER.replace("DPOTrainer", "Mine")
    conversion = converted(tmp_path, text)
    assert said(conversion.open, "Mine changes the trainer in code (compute_loss)")
    assert at(conversion, "model.path") == "a/b"


# --- models and data --------------------------------------------------------------------------------------------------


def test_arguments_of_from_pretrained_are_taken_over(tmp_path):
    model = "AutoModelForCausalLM.from_pretrained('a/b', revision='one', trust_remote_code=True, "
    model += "quantization_config=BitsAndBytesConfig(load_in_4bit=True), torch_dtype=torch.bfloat16, strange=3)"
    reference = "AutoModelForCausalLM.from_pretrained(pretrained_model_name_or_path='a/b', revision='two')"
    data = "load_dataset('x/y', split='train')"
    conversion = converted(
        tmp_path, f"DPOTrainer({model}, {reference}, DPOConfig(max_steps=2), train_dataset={data})\n"
    )
    assert at(conversion, "model") == {
        "path": "a/b", "revision": "one", "trust_remote_code": True, "precision": "bfloat16",
    }  # fmt: skip
    assert at(conversion, "reference") == {"path": "a/b", "revision": "two"}
    assert said(conversion.notes, "quantization_config")
    assert said(conversion.notes, "strange = 3")
    assert conversion.open == ()


FILES = "load_dataset('json', data_files={'train': 'a.jsonl', 'test': ['b.jsonl', 'c.jsonl'], 'old': 'd.jsonl'}"


@pytest.mark.parametrize(
    ("text", "train", "held_out"),
    [
        (f"d = {FILES})\ntrain, test = d['train'], d['test']\n", "a.jsonl", ["b.jsonl", "c.jsonl"]),
        (f"d = {FILES})\nd = d\ntrain = d['old']\ntest = None\n", "d.jsonl", None),
        (f"train = {FILES}, split='old')\ntest = {FILES}, split='train')\n", "d.jsonl", "a.jsonl"),
        (f"train = {FILES}, split='train[:50]')\ntest = None\n", "a.jsonl", None),
    ],
)
def test_a_split_of_named_files_is_its_file(text, train, held_out, tmp_path):
    text += "SFTTrainer('a/b', SFTConfig(max_steps=2), train_dataset=train, eval_dataset=test)\n"
    conversion = converted(tmp_path, text)
    assert (at(conversion, "data.train"), at(conversion, "data.eval")) == (train, held_out)
    assert at(conversion, "data.split") is None
    assert at(conversion, "data.eval_split") is None
    assert at(conversion, "data.max_rows") == (50 if "[:50]" in text else None)


@pytest.mark.parametrize("data", [f"{FILES})", f"{FILES}, split='missing')", f"{FILES}, split=chosen)"])
def test_named_files_without_a_known_split_are_asked_for(data, tmp_path):
    conversion = converted(tmp_path, f"SFTTrainer('a/b', SFTConfig(max_steps=2), train_dataset={data})\n")
    assert at(conversion, "data.train") is None
    assert said(conversion.open, "set data.train yourself")


@pytest.mark.parametrize(
    ("text", "open_"),
    [
        ("d = load_dataset('x/y')\ntrain = d['one'].map(f)\n", "the script changes the rows (map)"),
        ("d = load_dataset('x/y')\nd['one'] = d['one'].map(f)\ntrain = d['one']\n", "the script changes the rows (d["),
        ("d = load_dataset('x/y')\ntrain = d['one'].train_test_split(0.5)['train']\n", ""),
    ],
)
def test_a_split_is_found_behind_other_calls(text, open_, tmp_path):
    conversion = converted(tmp_path, f"{text}SFTTrainer('a/b', SFTConfig(max_steps=2), train_dataset=train)\n")
    assert at(conversion, "data.split") == "one"
    assert said(conversion.open, open_) if open_ else conversion.open == ()
    assert at(conversion, "data.eval_fraction") == (0.5 if "0.5" in text else None)
