"""Shell files that start verl or TRL: variables, arrays, branches, and words that are no settings."""

from __future__ import annotations

import random
import re
import shutil
import subprocess

import pytest
from tests.catalogue import catalogue

from posttrain.errors import ConfigError
from posttrain.lab.convert import convert
from posttrain.lab.convert.records import Unread
from posttrain.lab.convert.shell import commands
from posttrain.lab.convert.sources import read_source

VERL = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo"


def read(tmp_path, text, verb=""):
    path = tmp_path / "run.sh"
    path.write_text(text)
    return read_source(path, verb)


def told(source):
    return {name: given.value for name, given in source.settings.items()}


@catalogue(
    "before, given",
    [
        ("A=(a.x=1 a.y=2)", '"${A[@]}"'),
        ("A=(a.x=1 a.y=2)", "${A[@]}"),
        ("A=(a.x=1 a.y=2)", "${A[*]}"),
        ("A=(\n  a.x=1  # why\n  'a.y=2'\n)  # all", '"${A[@]}"'),
        ("A=(a.x=1)\nA+=(a.y=2)", '"${A[@]}"'),
        ("declare -a A=(a.x=1)\nA+=(\n  a.y=2\n)", '"${A[@]}"'),
        ('ONE=(a.x=1)\nA=("${ONE[@]}" a.y=2)', '"${A[@]}"'),
        ('X=1; A=(a.x=$X "a.y=${Y:-2}")', '"${A[@]}"'),
        ("A='a.x=1 a.y=2'", "$A"),
        ('A="a.x=1 a.y=2"', "${A}"),
        ("A=a.x=1\nA+=' a.y=2'", "$A"),
        ("B=1 C=2", "a.x=$B a.y=${C}"),
        ("export B=1 && C=2", "a.x=$B \\\n  a.y='2'"),
        ("B=1", 'a.x="$B" a.y=2 2>&1 | tee log.txt'),
        ("", "a.x=1 a.y=2 > log.txt 2>&1 &"),
        ("", "a.x=1 a.y=2 $@"),
        ("", 'a.x=1 a.y=2 "$@"'),
        ("", "a.x=1 a.y=2 --config-name='ppo_trainer'"),
    ],
)
def test_every_override_is_read(before, given, tmp_path):
    source = read(tmp_path, f"{before}\n{VERL} {given}\n")
    assert told(source) == {"algorithm.adv_estimator": "grpo", "a.x": 1, "a.y": 2}
    assert source.to_do == []


@catalogue(
    "before, given, value",
    [
        ("A='1 2'", 'a.x="$A"', "1 2"),
        ("A=1", "a.x='$A'", Unread("$A")),
        ("", "a.x=$A", Unread("$A")),
        ("A=$(date +%s)", "a.x=$A", Unread("$(date +%s)")),
        ("A=`date +%s`", "a.x=$A", Unread("`date +%s`")),
        ("if [ $1 = big ]; then\n  A=1\nelse\n  A=2\nfi", "a.x=$A", Unread("${A}")),
        ("A=1\nif [ $1 = big ]; then A=2; fi", "a.x=$A", Unread("${A}")),
        ("A=1\n[ $1 = big ] && A=2", "a.x=$A", Unread("${A}")),
        ("for A in 1 2; do A=$A; done", "a.x=$A", Unread("${A}")),
        ("case $1 in\n  big) A=1;;\nesac", "a.x=$A", Unread("${A}")),
        ("if true; then B=2; fi\nA=1", "a.x=$A", 1),
        ("A=2\nA=1", "a.x=$A", 1),
        ("cd here && A=1", "a.x=$A", 1),
    ],
)
def test_a_value_is_the_one_that_the_shell_gives_or_unread(before, given, value, tmp_path):
    source = read(tmp_path, f"{before}\n{VERL} {given}\nA=9\n")
    assert source.settings["a.x"].value == value


@catalogue(
    "before, word",
    [
        ("", "--config-name=mine"),
        ("", "--config-path=here"),
        ("", "~data.val_files"),
        ("", "$MORE"),
        ("", '"${MORE[@]}"'),
        ("if [ $1 = big ]; then MORE=(a.x=1); fi", '"${MORE[@]}"'),
        ("MORE=(a.y=1)\nif [ $1 = big ]; then MORE+=(a.x=1); fi", '"${MORE[@]}"'),
        ("", "${MORE%x}"),
    ],
)
def test_a_word_that_is_no_setting_is_said(before, word, tmp_path):
    source = read(tmp_path, f"{before}\n{VERL} {word}\n")
    shown = word.strip('"').replace("'", "")
    assert [text for _, text in source.to_do] == [f"{shown} was not read: add its settings"]
    assert ("a.y" in source.settings) == ("a.y" in before)


def test_arguments_of_the_script_are_a_remark(tmp_path):
    """verl's own examples end with `$@`."""
    for end in ("$@", '"$@"', "${@}", "$*"):
        (remark,) = read(tmp_path, f"{VERL} {end}\n").remarks
        assert "the arguments of this script are not in the file" in remark[1]


@catalogue("command", [VERL, "trl dpo --beta 0.2"])
@catalogue("between", ["", "echo done\n", "# trl dpo --beta 3\n", "echo main_ppo\n"])
def test_a_second_command_is_said(command, between, tmp_path):
    source = read(tmp_path, f"{command}\n{between}{command}\n")
    (left,) = source.to_do
    assert left[0] == 2 + bool(between)
    assert left[1].startswith("a second command that starts")
    assert read(tmp_path, f"{command}\n{between}").to_do == []


def test_lines_are_those_of_the_words(tmp_path):
    source = read(tmp_path, f"A=(\n  a.x=1\n  a.y=2\n)\n{VERL} \\\n  a.z=3 \\\n  '${{A[@]}}' \"${{A[@]}}\"\n")
    lines = {name: given.line for name, given in source.settings.items()}
    assert lines == {"algorithm.adv_estimator": 5, "a.z": 6, "a.x": 2, "a.y": 3}


def test_options_of_trl_take_arrays_and_leave_out_the_arguments_of_the_script(tmp_path):
    text = (
        'A=(--beta 0.2 --max_steps 3)\naccelerate launch --num_processes 4 dpo.py "${A[@]}" --loss_type ipo $@ > log\n'
    )
    source = read(tmp_path, text)
    assert told(source) == {"beta": 0.2, "max_steps": 3, "loss_type": "ipo"}
    assert source.devices == 4
    assert source.to_do == []
    assert told(read(tmp_path, "pip install x\npython mine.py --beta 0.2\npython other.py --beta 1\n", "dpo")) == {
        "beta": 0.2
    }


@pytest.mark.parametrize("given", ["--config mine.yaml", "--config=mine.yaml"])
def test_a_config_file_of_trl_is_said(given, tmp_path):
    source = read(tmp_path, f"trl dpo {given} --beta 0.2\n")
    assert source.to_do == [(1, "--config mine.yaml was not read: add its settings")]


@pytest.mark.parametrize(
    "text", ["python -m http.server", "trl vllm-serve --model m", "accelerate config --beta", "pip --beta 1"]
)
def test_a_command_that_starts_no_program_of_trl_is_no_config(text, tmp_path):
    with pytest.raises(ConfigError):
        read(tmp_path, f"{text}\n", "" if "config" in text else "dpo")


@catalogue(
    "starts, verb, devices",
    [
        ("trl dpo", "", 1),
        ("trl dpo --num_processes 4", "", 4),
        ("trl dpo --num_processes $N", "", None),
        ("trl dpo --accelerate_config fsdp2", "", None),
        ("python dpo.py", "", 1),
        ("python3.11 -u scripts/dpo.py", "", 1),
        ("uv run dpo.py", "", 1),
        ("./dpo.py", "", 1),
        ("CUDA_VISIBLE_DEVICES=0 python dpo.py", "", 1),
        ("srun python dpo.py", "", None),
        ("accelerate launch dpo.py", "", None),
        ("accelerate launch --num_processes 8 train_dpo.py", "dpo", 8),
        ("accelerate launch --num-processes=8 run.py", "dpo", 8),
        ("accelerate launch --num_processes $N dpo.py", "", None),
        ("accelerate launch --config_file zero3.yaml dpo.py", "", None),
        ("accelerate launch --config_file configs/grpo.yaml --num_processes 8 examples/dpo.py", "", 8),
        ("accelerate launch --num_machines 2 --num_processes 16 dpo.py", "", 16),
        ("deepspeed --num_gpus=8 dpo.py", "", 8),
        ("deepspeed --num_gpus 8 --num_nodes 2 dpo.py", "", 16),
        ("deepspeed dpo.py", "", None),
        ("torchrun dpo.py", "", 1),
        ("torchrun --nnodes 4 --nproc_per_node 8 dpo.py", "", 32),
        ("torchrun --nnodes $N --nproc-per-node 8 dpo.py", "", None),
        ("torchrun --nproc_per_node gpu dpo.py", "", None),
        ("python -m torch.distributed.run --nproc_per_node 2 dpo.py", "", 2),
    ],
)
def test_the_options_and_the_processes_of_a_command_are_told_apart(starts, verb, devices, tmp_path):
    options = "--per_device_train_batch_size 4 --beta 0.3 --output_dir runs/dpo --config_of x.py"
    source = read(tmp_path, f"{starts} {options}\n", verb)
    given = {"per_device_train_batch_size": 4, "beta": 0.3, "output_dir": "runs/dpo", "config_of": "x.py"}
    assert {name: value for name, value in told(source).items() if name != "accelerate_config"} == given
    assert source.form == "DPOConfig"
    assert isinstance(source.devices, Unread) if devices is None else source.devices == devices


@pytest.mark.parametrize(
    ("starts", "verb", "devices"),
    [
        ("python -m torch.distributed.run --nproc_per_node 2 -m mypkg.train", "dpo", 2),
        ("torchrun --nproc-per-node 8 -m mypkg.train_dpo", "dpo", 8),
        ("torchrun --nproc-per-node 8 --module mypkg.train", "dpo", 8),
        ("accelerate launch --num_processes 4 -m trl.scripts.dpo", "dpo", 4),
        ("accelerate launch --num_processes 4 -m trl.scripts.dpo", "", 4),
        ("python -m mypkg.train", "dpo", 1),
        ("python -m trl.scripts.dpo", "", 1),
        ("python $SCRIPT", "dpo", 1),
        ("SCRIPT=train.py; accelerate launch --num_processes 8 $SCRIPT", "dpo", 8),
        ("SCRIPT=mypkg.train; accelerate launch --num_processes 8 -m $SCRIPT", "dpo", 8),
        ("accelerate launch --multi_gpu --num_processes 8 ${SCRIPT}", "dpo", 8),
        ("accelerate launch --gradient_accumulation_steps 4 --num_processes 8 $SCRIPT", "dpo", 8),
        ("accelerate launch --num_processes 8 --mixed_precision bf16 --seed 3 $SCRIPT", "dpo", 8),
        ("accelerate launch --config_file $CONFIG --num_processes 8 $SCRIPT", "dpo", 8),
        ("deepspeed --num_gpus 8 --seed 1 --module mypkg.train", "dpo", 8),
        ("torchrun --seed=3 --nproc_per_node=8 -m mypkg.train $@", "dpo", 8),
        ("torchrun --nproc_per_node=8 -m mypkg.train --mine x.py", "dpo", 8),
        ("git commit -m grpo --quiet\npython -m trl.scripts.dpo", "", 1),
        ("python -m pip install x --dataset_name y\npython -m mypkg.train", "dpo", 1),
        ("python -m pytest -m grpo --quiet\npython -m trl.scripts.dpo", "", 1),
        ("python -m pytest -m dpo --quiet\npython -m mypkg.train", "dpo", 1),
    ],
)
def test_a_program_that_is_a_module_or_a_variable_is_found(starts, verb, devices, tmp_path):
    source = read(tmp_path, f"{starts} --model_name_or_path a/b --beta 0.3 --mine x y --max_steps 3\n", verb)
    assert told(source) == {"model_name_or_path": "a/b", "beta": 0.3, "mine": ["x", "y"], "max_steps": 3}
    assert (source.form, source.devices, source.to_do) == ("DPOConfig", devices, [])


@pytest.mark.parametrize(
    "starts",
    [
        "accelerate launch --seed 3 train",
        "accelerate launch --multi_gpu $SCRIPT",
        "accelerate launch --multi_gpu $SCRIPT --tags a $B",
        "accelerate launch --seed $SEED $SCRIPT",
        "accelerate launch -m --seed 4 mypkg.train",
        "torchrun $DISTRIBUTED_ARGS $SCRIPT",
        "SCRIPT=train; accelerate launch $SCRIPT",
        "python -m accelerate.commands.launch --seed 3 $SCRIPT",
        "python -m torch.utils.bottleneck",
        "python -m pip install x",
        "python -c 'print()' $SCRIPT",
        "git commit -m dpo",
        "./run -m mypkg.train",
        "$SCRIPT",
    ],
)
def test_a_program_that_cannot_be_told_from_options_is_refused(starts, tmp_path):
    with pytest.raises(ConfigError, match="holds no known config"):
        read(tmp_path, f"{starts} --beta 0.3 --seed 4\n", "dpo")


@pytest.mark.parametrize("starts", ["accelerate launch dpo.py", "srun python dpo.py", "deepspeed dpo.py"])
def test_a_number_of_processes_that_the_file_does_not_tell_is_asked_for(starts, tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(f"{starts} --model_name_or_path m --dataset_name d --max_steps 5\n")
    asked, told_ = convert(path), convert(path, devices=2)
    assert ["give --devices N" in text for text in asked.open] == [True]
    assert "prompts_per_step" not in asked.settings["train"]
    assert (told_.open, told_.settings["train"]["prompts_per_step"]) == ((), 16)


@pytest.mark.parametrize("verb", ["", "dpo"])
def test_a_file_without_a_command_says_what_helps(verb, tmp_path):
    with pytest.raises(ConfigError) as error:
        read(tmp_path, "./train --beta 0.2\n", verb)
    assert ("--as" in str(error.value)) == (not verb)


@catalogue(
    "text, rate",
    [
        ("grep -q big conf.txt && LR=2", "${LR}"),
        ("grep -q big conf.txt || LR=2", "${LR}"),
        ("cd x && LR=2", "2"),
        ("LR=2 echo hi", "1"),
        ("set_rate() {\n  LR=2\n}", "${LR}"),
        ("function set_rate {\n  LR=2\n}\nLR=3", "3"),
        ("cat <<EOF > x\nLR=2\nEOF", "1"),
        ("cat <<-'END'\nLR=2\nEND\nLR=3", "3"),
        ("for LR in 2 3; do echo; done", "${LR}"),
        ("while [ $# -gt 0 ]; do case $1 in --lr) LR=$2; shift;; esac; shift; done", "${LR}"),
        ("read LR", "${LR}"),
        ("while read LR; do echo; done < x", "${LR}"),
        ("IFS=, read -r LR A < x", "${LR}"),
        ("set_rate () {\n  LR=2\n}", "${LR}"),
        ("# use <<EOF here\nLR=2\n", "2"),
        ("read -r A LR < conf.txt", "${LR}"),
    ],
)
def test_a_variable_that_may_have_another_value_keeps_its_name(text, rate):
    *_, last = commands(f"LR=1\n{text}\ntrl grpo --learning_rate $LR\n")
    assert [word.text for word in last] == ["trl", "grpo", "--learning_rate", rate]


SNIPPETS = [
    "LR=2", "LR=3; BS=4", "export LR=5", "LR+=6", "LR=$BS", "LR=${BS:-7}", "LR=${LR:-8}", "LR=${NO:-${BS}}",
    'LR=${NO:-"${BS}"}', 'LR="${NO:-"${BS}"}"', "LR=${BS-9}", "BS=", "LR=", "LR=$((BS * 2))", "LR=$((2 * 3 * 4))",
    "LR=$((${BS} + 1))", 'LR="$((BS - 1))"', "LR=$((2 + 3 * 4))", "LR=$((010 * 2))", "LR=$((0x10 + 1))",
    "BS=1+1; LR=$((BS * 2))", "LR=$((7 / 2))", "LR=9 true", "LR=9 BS=8 true $LR", "LR=9 :", "unset LR",
    "printf -v LR 9", "read -r LR <<< 9", "read -r LR BS <<< '1 2'", "mapfile -t LR <<< 9", "let LR=9", "((LR = 9))",
    "eval LR=9", ". ./env.sh", "source ./env.sh", ": ${LR:=9}", ": ${NO:=9}", "LR=${NO:-1}", "(LR=9)",
    "(LR=9; LR=8)", "(cd . && true)", "(true; LR=9)", "( export LR=9; true )",
    "{ LR=9; }", "true && LR=9", "false && LR=9", "false || LR=9", "true || { LR=9; BS=8; }",
    "false || { BS=8; LR=9; }", "if true; then LR=9; fi", "for LR in 8 9; do :; done", "case a in a) LR=9;; esac",
    "set_rate() { LR=9; }", "set_rate() {\n  LR=9\n}\nset_rate", "function set_rate {\n  LR=9\n}\nset_rate",
    "set_rate () {\n  BS=9\n}\nLR=1; set_rate; LR=$BS", "set_rate() { LR=9; }\nif true; then set_rate; fi",
    "bash <<EOF\nLR=9\nEOF", "cat <<'EOF' > /dev/null\nLR=9\nEOF", "cat <<-EOF > /dev/null\nLR=9\n\tEOF",
    "cat << EOF > /dev/null\nit's \"\nEOF", "set -e", "set -- 9", "LR=$1", "LR='$BS'", 'LR="$BS$BS"', "LR=\\$BS",
    'LR="\\$BS"', "LR=$(echo 9)", "LR=`echo 9`", "while false; do LR=9; done", "shopt -s expand_aliases",
]  # fmt: skip
PROBES = ["$LR", "${LR}", "${LR:-x}", "${LR-x}", "${NO:-$LR}", "$BS", "$((LR * 2))", "$LR$BS", '${NO:-"${LR}"}', "$NO"]


def scripts(count):
    """Yield scripts that set variables in several ways, one after the other."""
    chosen = random.Random(7)
    for place in range(count):
        parts = [SNIPPETS[place % len(SNIPPETS)], *chosen.choices(SNIPPETS, k=2)]
        chosen.shuffle(parts)
        yield "LR=1\nBS=3\n" + "\n".join(parts)


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is missing")
@pytest.mark.parametrize("times", [2, pytest.param(6, marks=pytest.mark.slow)])
def test_a_value_is_the_one_that_bash_gives_or_unknown(tmp_path, times):
    """Bash itself runs the scripts here; convert never does."""
    (tmp_path / "env.sh").write_text("LR=11\nBS=12\nNO=13\n")
    texts, known = list(scripts(times * len(SNIPPETS))), 0
    probes = " ".join(f'"{probe}"' for probe in PROBES)
    told_ = [f"(\n{text}\nprintf '<%s>' {probes}\n) 2>/dev/null\necho" for text in texts]
    ran = subprocess.run(["bash", "-c", "\n".join(told_)], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    for text, line in zip(texts, ran.stdout.split("\n"), strict=False):
        for number, (probe, given) in enumerate(zip(PROBES, re.findall(r"<(.*?)>", line), strict=False)):
            *_, last = commands(f'{text}\nrun "{probe}"\n')
            found = " ".join(word.text for word in last[1:])
            known += "$" not in found and "`" not in found
            assert found == given or "$" in found or "`" in found, (text, probe, number)
    assert known > len(texts)


@catalogue(
    "text, rate",
    [
        ("LR=2\nbash <<EOF\nLR=3\nrun $LR\nEOF", "2"),
        ("LR=2\nbash <<'EOF'\nLR=3\nrun $LR\nEOF", "$LR"),
        ("LR=2\nbash <<\\EOF\nrun $LR\nEOF", "$LR"),
        ("LR=2\nbash <<EOF\nrun \\$LR\nEOF", "$LR"),
        ('LR=2\nbash <<EOF\nrun "\\$LR"\nEOF', "$LR"),
        ("LR=2\ncat > job.slurm <<EOF\n#SBATCH -N 1\nrun $LR\nEOF\nLR=3\nsbatch job.slurm", "2"),
        ("LR=2\ncat > job.slurm <<EOF\nexport LR=3\nLR=4 run $LR\nEOF", "2"),
        ("f() {\nrun $LR\n}\nLR=2\nf", "$LR"),
        ("LR=1\nf() {\n  run $LR\n}\nLR=2\nf", "$LR"),
        ("f() {\n  LR=1\n  run ${LR:-3}\n}", "${LR:-3}"),
        ("source env.sh\nrun ${LR:-3}", "${LR:-3}"),
        ('A=(1 2)\nf() {\n  run "${A[@]}"\n}\nA=(3)\nf', "${A[@]}"),
        ('A=(1 2)\nsource env.sh\nrun "${A[@]}"', "${A[@]}"),
        ("f() {\n  run 1\n}\nLR=2\nrun $LR", "2"),
    ],
)
def test_values_in_heredocs_and_functions(text, rate):
    *_, last = (command for command in commands(text, written=True) if command[0].text == "run")
    assert last[-1].text == rate


def test_lines_in_a_heredoc_are_those_of_the_file():
    words = [word for command in commands("A=1\nbash <<EOF\n\n# x\nrun $A \\\n  b\nEOF\nend\n") for word in command]
    assert [(word.text, word.line) for word in words[2:]] == [("run", 5), ("1", 5), ("b", 6), ("end", 8)]


@pytest.mark.parametrize(
    "starts",
    ["sbatch", "bash", "ssh node bash", "/bin/sh -e", "sudo bash", "cd x && bash", "srun bash -s", "zsh", "cat | bash"],
)
def test_commands_that_a_shell_reads_from_a_heredoc_are_read(starts):
    found = [[word.text for word in command] for command in commands(f"LR=1\n{starts} <<EOF\nrun --lr $LR\nEOF\n")]
    assert ["run", "--lr", "1"] in found


KEPT = ["cat > notes.txt", "cat", "cat > train.sh", "tee notes.md", "python -", "read -r -d '' USAGE", "cat > bash.txt"]


@pytest.mark.parametrize("quote", ["", "'"])
@pytest.mark.parametrize("starts", KEPT)
@pytest.mark.parametrize("body_first", [True, False])
def test_a_text_that_a_script_keeps_is_read_only_if_the_script_has_no_command(starts, quote, body_first, tmp_path):
    body, own = f"{starts} <<{quote}EOF{quote}\nold: trl grpo --beta 0.9\nEOF\n", "trl dpo --beta 0.2\n"
    source = read(tmp_path, body + own if body_first else own + body)
    assert (source.form, told(source), len(source.to_do)) == ("DPOConfig", {"beta": 0.2}, 1)
    assert source.to_do[0][0] == (2 if body_first else 3)
    assert source.to_do[0][1].startswith("a second command that starts TRL")
    alone = read(tmp_path, body)
    assert (told(alone), alone.to_do) == ({"beta": 0.9}, [])


@pytest.mark.parametrize(
    "trainer",
    [
        "accelerate launch --num_processes 8 train.py --beta 0.9 --mine x",
        "accelerate launch --num_processes 8 train.py --mine x --config mine.yaml",
        'accelerate launch --num_processes 8 train.py --mine x "${MORE[@]}"',
        "accelerate launch --num_processes 8 $SCRIPT --beta 0.9 --mine x",
        "torchrun --nproc_per_node 8 -m mypkg.train --beta 0.9 --mine x",
    ],
)
@pytest.mark.parametrize(
    "text",
    [
        "python prep.py --rows 100\n{}\n",
        "{}\npython prep.py --rows 100\n",
        "cat > job.sh <<'EOF'\n{}\nEOF\npython prep.py --rows 100\nsbatch job.sh\n",
    ],
)
def test_the_command_with_settings_that_trl_knows_is_the_trainer(trainer, text, tmp_path):
    source = read(tmp_path, text.format(trainer), "dpo")
    assert (source.devices, "rows" in told(source), source.settings["mine"].value) == (8, False, "x")
    line = text[: text.index("python")].count("\n") + 1
    assert any(place == line and said.startswith("a second command") for place, said in source.to_do)


def test_a_heredoc_that_a_pipe_gives_to_a_shell_is_read(tmp_path):
    source = read(tmp_path, "cat <<EOF | bash\ntrl dpo --beta 0.2\nEOF\ntrl dpo --beta 0.3\n")
    assert (told(source), len(source.to_do)) == ({"beta": 0.2}, 1)


@pytest.mark.parametrize(
    ("subshell", "inside", "after"),
    [
        ("(cd x && mkdir -p logs; run $LR)", "1", "1"),
        ("(\n  mkdir -p logs\n  run $LR\n)", "1", "1"),
        ("( set -e; run $LR )", "1", "1"),
        ("(cd x; LR=9; run $LR)", "${LR}", "${LR}"),
        ("(LR=9; run $LR)", "${LR}", "${LR}"),
        ("( LR=9\n run $LR)", "${LR}", "${LR}"),
        ("(export LR=9; run $LR)", "${LR}", "${LR}"),
        ("(source env.sh; run $LR)", "${LR}", "${LR}"),
        ("(cd x; . env.sh; run $LR)", "${LR}", "${LR}"),
        ("(read LR; run $LR)", "${LR}", "${LR}"),
        ("(for LR in 8 9; do run $LR; done)", "${LR}", "${LR}"),
        ("(while read LR; do run $LR; done)", "${LR}", "${LR}"),
        ("((LR = 9)); run $LR", "${LR}", "${LR}"),
        ("set_rate() {\n  LR=9\n}\n(set_rate; run $LR)", "${LR}", "${LR}"),
    ],
)
def test_a_subshell_leaves_variables_known_unless_it_may_set_them(subshell, inside, after):
    found = [[word.text for word in command] for command in commands(f"LR=1\n{subshell}\nrun $LR\n")]
    first, *_, last = (command for command in found if command[0] == "run")
    assert (first[1].rstrip(")"), last[1]) == (inside, after)


@pytest.mark.parametrize("text", ["echo main_ppo", "pkill -f main_ppo", "# " + VERL, "cp dpo.py x"])
def test_a_file_that_starts_nothing_is_refused(text, tmp_path):
    with pytest.raises(ConfigError, match="holds no known config"):
        read(tmp_path, text + "\n")


@catalogue(
    "text, words",
    [
        ("a 'b c' \"d e\" f\\ g", [["a", "b c", "d e", "f g"]]),
        ("a; b && c | d\ne", [["a"], ["b"], ["c"], ["d"], ["e"]]),
        ("a'b'\"c\"d '' \"\"", [["abcd", "", ""]]),
        ("a#b # c\nd", [["a#b"], ["d"]]),
        ("it's", [["it's"]]),
        ('X=1; a ${X}b$X "$X c"', [["a", "1b1", "1 c"]]),
        ('X=1\nX=2 a ${X}b$X "$X c"\nb $X', [["a", "1b1", "1 c"], ["b", "1"]]),
        ('X=2 a $X "$X"', [["a", "${X}", "${X}"]]),
        ('E=\na $E b "$E"', [["a", "b", ""]]),
        ("a $(b; c (d)) `e f`", [["a", "$(b; c (d))", "`e f`"]]),
        ("X='b c'\na x${X}d", [["a", "xb", "cd"]]),
        ("", []),
    ],
)
def test_words_are_those_of_bash(text, words):
    assert [[word.text for word in command] for command in commands(text)] == words
