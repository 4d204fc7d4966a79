"""The tier in use: the named one or none, and never one that has not been attacked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.verify.missing import no_sandbox

from posttrain.environment import Finding, check_environment
from posttrain.errors import ConfigError
from posttrain.verify.sandbox import Limits, SandboxUnavailable, open_sandbox, sandbox, selftest, tiers
from posttrain.verify.sandbox.forkserver import Command
from posttrain.verify.sandbox.tiers import Tier


@pytest.fixture
def new_cache(monkeypatch, tmp_path) -> Path:
    """A cache folder that remembers no self-test. The other tests share the one of the session."""
    monkeypatch.setenv("POSTTRAIN_CACHE", str(tmp_path))
    return tmp_path / "sandbox"


def broken(name: str, reason: str) -> Tier:
    line = [sys.executable, "-c", f"import sys; sys.exit({reason!r})"]
    return Tier(name=name, command=lambda number: Command(line=line, setup={}))


def unconfined() -> Tier:
    return Tier(name="landlock", command=tiers.unsafe().command)


def test_a_name_that_is_no_tier_is_refused():
    with pytest.raises(ConfigError, match=r"sandbox = 'docker'; allowed: auto, bubblewrap, landlock, container:IMAGE"):
        open_sandbox("docker")


def test_auto_prefers_bubblewrap(monkeypatch, landlock):
    asked = []
    monkeypatch.setattr(sandbox, "_open", lambda name, *_: asked.append(name) or landlock)
    assert open_sandbox() is landlock
    assert asked == ["bubblewrap"]


def test_auto_takes_landlock_where_bubblewrap_does_not_work(monkeypatch, landlock):
    monkeypatch.setattr(tiers, "bubblewrap", lambda: broken("bubblewrap", "bwrap: No permissions to create namespace"))
    with open_sandbox() as found:
        assert found.tier == landlock.tier


def test_no_tier_works_says_what_was_tried_why_not_and_the_three_fixes(monkeypatch):
    monkeypatch.setattr(tiers, "bubblewrap", lambda: broken("bubblewrap", "bwrap: No permissions to create namespace"))
    monkeypatch.setattr(tiers, "landlock", lambda: broken("landlock", "Landlock: Function not implemented"))
    with pytest.raises(SandboxUnavailable) as caught:
        open_sandbox()
    assert caught.value.given == (
        "no sandbox works here (bubblewrap: bwrap: No permissions to create namespace; "
        "landlock: Landlock: Function not implemented)"
    )
    for fix in ("apt install bubblewrap", "bwrap-userns-restrict", "Linux 5.13", "lsm=", "container:"):
        assert fix in caught.value.fix
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("name", ["bubblewrap", "landlock"])
def test_a_named_tier_that_does_not_work_is_never_replaced_by_another(monkeypatch, name):
    monkeypatch.setattr(tiers, name, lambda: broken(name, "not here"))
    with pytest.raises(SandboxUnavailable, match=f"{name}: not here"):
        open_sandbox(name)


def test_bubblewrap_that_is_not_installed_is_said_so(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SandboxUnavailable, match="bubblewrap: the program bwrap is not installed"):
        open_sandbox("bubblewrap")


def test_a_tier_that_starts_but_does_not_hold_is_refused_by_name_of_what_got_out(monkeypatch, new_cache):
    """All parts are in place and answer; only an attack shows that nothing is blocked."""
    harmless = ["environment", "read a file", "connect to loopback", "fork"]
    program = selftest.PROBES.read_text().replace('WANTED.get("only", list(ATTEMPTS))', repr(harmless))
    probes = new_cache.parent / "probes.py"
    probes.write_text(program)
    monkeypatch.setattr(selftest, "PROBES", probes)
    monkeypatch.setattr(selftest, "COSTS", {})  # saves seconds of CPU time; these limits hold in this tier, too
    monkeypatch.setattr(tiers, "landlock", unconfined)
    with pytest.raises(SandboxUnavailable, match="a program in it could: read a file, connect to loopback, fork"):
        open_sandbox("landlock")
    assert not new_cache.exists(), "a failure is not remembered"


def test_a_kernel_without_the_filter_is_no_sandbox(monkeypatch):
    refusing = f"import errno; raise SystemExit('seccomp: ' + errno.errorcode[{38}])"
    line = [sys.executable, "-c", refusing]
    monkeypatch.setattr(tiers, "landlock", lambda: Tier(name="x", command=lambda n: Command(line=line, setup={})))
    with pytest.raises(SandboxUnavailable, match="seccomp: ENOSYS"):
        open_sandbox("landlock")


def test_a_step_of_the_confinement_that_fails_in_the_child_runs_nothing(monkeypatch, tmp_path):
    """The filter is damaged: the kernel refuses it, and the program must not run."""
    note = tmp_path / "note"
    start = tiers.START.replace(
        "from inside.server import main", "from inside import seccomp\nseccomp.build = lambda: b'12345678'\n"
        "from inside.server import main"
    )  # fmt: skip
    monkeypatch.setattr(tiers, "START", start)
    tier = tiers.landlock()
    refused = pytest.raises(SandboxUnavailable, match="the seccomp filter was not accepted")
    with sandbox.Sandbox(tier.name, tier.command, Limits(), 1) as box, refused:
        box.run(f"open({str(note)!r}, 'w')")
    assert not note.exists()


@pytest.mark.slow
def test_what_has_held_is_remembered_and_a_change_asks_again(new_cache, monkeypatch):
    attacks = []
    monkeypatch.setattr(selftest, "wrongly_ended", lambda box: [])  # saves seconds of CPU time
    run = selftest.reached_by_probes
    monkeypatch.setattr(selftest, "reached_by_probes", lambda box: attacks.append(box.tier) or run(box))
    try:
        for _ in range(2):
            open_sandbox("landlock").close()
    except SandboxUnavailable as error:
        no_sandbox(error.given)
    assert attacks == ["landlock"]
    (kept,) = new_cache.iterdir()
    assert json.loads(kept.read_text()) == {"tier": "landlock", "passed": True}
    monkeypatch.setattr(selftest, "code_key", lambda *_: "another version")
    open_sandbox("landlock").close()
    assert attacks == ["landlock", "landlock"]


@pytest.mark.slow
def test_a_cache_folder_that_cannot_be_written_is_no_obstacle(monkeypatch, landlock):
    monkeypatch.setenv("POSTTRAIN_CACHE", "/proc/nonexistent")
    open_sandbox(landlock.tier).close()


@pytest.mark.slow
def test_unsafe_has_to_be_typed_and_warns_each_time():
    for _ in range(2):
        with pytest.warns(UserWarning, match="runs the model's programs with all rights of this user"):
            box = open_sandbox("unsafe", size=1)
        with box:
            assert box.tier == "unsafe"
            assert box.run("print(open('/etc/hostname').read() != '')").stdout == b"True\n"
            assert box.run("while True: pass", limits=Limits(wall=0.2)).ended == "wall"


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_other_systems_are_refused_in_words(monkeypatch, platform):
    monkeypatch.setattr(sandbox.sys, "platform", platform)
    with pytest.raises(
        SandboxUnavailable, match=f"only be confined on Linux, but this is {platform}\n.*virtual machine"
    ):
        open_sandbox()


@pytest.mark.slow
def test_check_says_which_sandbox_there_is_and_how_to_get_one(monkeypatch):
    def finding() -> Finding:
        return next(one for one in check_environment().findings if one.what == "sandbox")

    assert finding().level in ("OK", "WARN")
    monkeypatch.setattr(tiers, "bubblewrap", lambda: broken("bubblewrap", "no namespaces"))
    monkeypatch.setattr(tiers, "landlock", lambda: broken("landlock", "no Landlock"))
    missing = finding()
    assert (missing.level, missing.fix) == ("WARN", sandbox.FIXES)
    assert missing.found.startswith(
        "code rewards cannot run: no sandbox works here (bubblewrap: no namespaces; landlock"
    )


# --- bubblewrap: no part of it is writable ---------------------------------------------------------------------------


def test_bubblewrap_shows_python_and_four_devices_and_nothing_that_can_be_written():
    if not tiers.shutil.which("bwrap"):
        pytest.skip("bubblewrap is not installed")
    line = tiers.bubblewrap().command(0).line
    inner = line.index("--")
    look = """
import os
def walk(folder, depth):
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        try:
            open(path + "/x" if os.path.isdir(path) else path, "r+b" if os.path.isfile(path) else "wb").close()
            if not path.startswith("/dev/"): print("writable", path)
        except OSError:
            pass
        if depth and os.path.isdir(path) and not os.path.islink(path): walk(path, depth - 1)
walk("/", 2)
print(sorted(os.listdir("/dev")), os.path.exists("/proc/self"), os.getpid())
"""
    ran = subprocess.run([*line[: inner + 2], "-S", "-c", look], capture_output=True, text=True, cwd="/")
    if ran.returncode:
        pytest.skip(ran.stderr)
    assert ran.stdout == "['null', 'random', 'urandom', 'zero'] False 2\n"


# --- containers: the command line, and the messages of a failing client -----------------------------------------------


@pytest.fixture
def client(monkeypatch, tmp_path):
    """A docker client that records its arguments and fails as the real one does without a daemon."""
    script = tmp_path / "docker"
    script.write_text(
        f"#!{sys.executable}\nimport json, sys\n"
        f"open({str(tmp_path / 'arguments')!r}, 'w').write(json.dumps(sys.argv))\n"
        "print('docker: Cannot connect to the Docker daemon. Is the docker daemon running?', file=sys.stderr)\n"
        "print('See docker run --help.', file=sys.stderr)\nsys.exit(125)\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path / "arguments"


def test_a_container_gets_no_network_no_capability_and_nothing_to_write_to(client):
    with pytest.raises(SandboxUnavailable, match=r"container:python:3\.12-slim: docker: Cannot connect to the Docker"):
        open_sandbox("container:python:3.12-slim")
    words = json.loads(client.read_text())
    said = " ".join(words)
    for part in (
        "run --rm --name posttrain-",
        "--network none --read-only --cap-drop ALL --security-opt no-new-privileges --pids-limit 128 --ipc none",
        "--env PYTHONHASHSEED=0",
        f"--volume {tiers.INSIDE}:/posttrain/inside:ro",
        "--entrypoint python3 python:3.12-slim -s -S -P -B -X utf8 -c",
    ):
        assert part in said
    user = words[words.index("--user") + 1].split(":")[0]
    assert int(user) != 0
    setup = json.loads(words[-1])
    assert setup["seccomp"] is True
    assert setup["socket"] == "/run/posttrain/socket"
    meeting = next(word for word in words if word.endswith(":/run/posttrain")).partition(":")[0]
    assert not Path(meeting).exists(), "the folder is removed"


def test_the_real_client_fails_in_words_where_there_is_no_daemon():
    if not tiers.shutil.which("docker"):
        pytest.skip("no docker client")
    if subprocess.run(["docker", "info"], capture_output=True).returncode == 0:
        pytest.skip("there is a docker daemon here")
    with pytest.raises(SandboxUnavailable, match=r"container:python:3\.12-slim: .*(daemon|connect|permission)"):
        open_sandbox("container:python:3.12-slim")


def test_a_machine_without_a_client_says_so(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SandboxUnavailable, match="neither docker nor podman is installed"):
        open_sandbox("container:python:3.12-slim")


def test_the_fork_server_of_a_container_meets_the_judge_at_a_socket(monkeypatch, tmp_path):
    """The client runs the command here instead of in a container: descriptors are passed, and programs run."""
    script = tmp_path / "docker"
    script.write_text(
        f"#!{sys.executable}\nimport os, sys\nwords = sys.argv[1:]\n"
        "mounts = [v.removesuffix(':ro').split(':') for k, v in zip(words, words[1:]) if k == '--volume']\n"
        "volumes = {inner: outer for outer, inner in mounts}\n"
        "inner = words[words.index('--entrypoint') + 3:]\n"
        "inner[-1] = inner[-1].replace('/run/posttrain', volumes['/run/posttrain'])\n"
        "inner[-2] = os.path.dirname(volumes['/posttrain/inside'])\n"
        f"os.execv({sys.executable!r}, [{sys.executable!r}, *inner])\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    tier = tiers.container("any")
    with sandbox.Sandbox(tier.name, tier.command, Limits(), 1) as box:
        assert box.run("print(int(input()) + 1)", stdin=b"41").stdout == b"42\n"
        assert box.run("open('/etc/passwd')").returncode == 1
        pid = box._all[0].pid
    assert not os.path.exists(f"/proc/{pid}")
