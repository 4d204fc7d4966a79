"""The program of the self-test, which tries to escape. It is sent as source, and stdin has the targets as JSON.

It prints the names of the successful attempts as JSON. An attempt succeeds if its function returns.
"""

import ctypes
import fcntl
import json
import os
import signal
import socket
import sys

WANTED = json.loads(sys.stdin.read()) if __name__ == "__main__" else {}
LIBC = ctypes.CDLL(None, use_errno=True)


def called(name, *arguments):
    if getattr(LIBC, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)


def system_call(x86_64, aarch64, *arguments):
    number = aarch64 if os.uname().machine == "aarch64" else x86_64
    if LIBC.syscall(ctypes.c_long(number), *arguments) < 0:
        raise OSError(ctypes.get_errno(), "refused")


def child(fork):
    number = fork()
    if number == 0:
        os._exit(0)
    if number < 0:
        raise OSError("refused")


def reach(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as client:
        client.settimeout(0.5)
        client.connect(address)


def send_to_resolver():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.sendto(b"?", ("127.0.0.1", WANTED["port"]))


def write(path):
    with open(path, "w") as file:
        file.write("x")


def write_through_link():
    link = os.path.join(WANTED["folder"], "link")
    os.symlink(WANTED["file"], link)
    write(link)


def read(path):
    with open(path, "rb") as file:
        file.read(1)


def signal_by_pipe():
    """Let the kernel send the signal. SIGKILL would work in the same way."""
    end, _ = os.pipe()
    fcntl.fcntl(end, fcntl.F_SETOWN, WANTED["pid"])
    fcntl.fcntl(end, 10, signal.SIGCONT)


def read_memory():
    buffer = ctypes.create_string_buffer(8)
    pair = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 8)
    remote = (ctypes.c_void_p * 2)(WANTED["address"], 8)
    called("process_vm_readv", WANTED["pid"], pair, 1, remote, 1, 0)


def environment():
    if not os.environ:
        raise LookupError("empty")


def descriptors():
    """Find a descriptor beyond the four that every program has."""
    for number in range(4, 1024):
        try:
            os.fstat(number)
        except OSError:
            continue
        return
    raise LookupError("none")


ATTEMPTS = {
    "environment": environment,
    "descriptors": descriptors,
    "read a file": lambda: read(WANTED["file"]),
    "list a folder": lambda: os.listdir(WANTED["folder"]),
    "read the environment of a process": lambda: read(f"/proc/{WANTED['pid']}/environ"),
    "read the memory of pid 1": lambda: read("/proc/1/mem"),
    "list processes": lambda: os.listdir("/proc"),
    "write a file": lambda: write(os.path.join(WANTED["folder"], "new")),
    "overwrite a file": lambda: write(WANTED["file"]),
    "write through a link": write_through_link,
    "write to shared memory": lambda: write("/dev/shm/posttrain-self-test"),
    "write to /tmp": lambda: write("/tmp/posttrain-self-test"),
    "change a mode": lambda: os.chmod(WANTED["file"], 0o777),
    "change a time": lambda: os.utime(WANTED["file"]),
    "truncate a file": lambda: os.truncate(WANTED["file"], 0),
    "truncate by opening": lambda: os.open(WANTED["file"], os.O_RDONLY | os.O_TRUNC),
    "remove a file": lambda: os.unlink(WANTED["file"]),
    "signal a process": lambda: os.kill(WANTED["pid"], 0),
    "signal every process": lambda: os.kill(-1, 0),
    "signal a process by a pipe": signal_by_pipe,
    "signal the fork-server": lambda: os.kill(os.getppid(), 0),
    "trace a process": lambda: called("ptrace", 16, WANTED["pid"], 0, 0),
    "read the memory of a process": read_memory,
    "limit a process": lambda: called("prlimit", WANTED["pid"], 7, (ctypes.c_ulong * 2)(9, 9), None),
    "connect to loopback": lambda: reach(socket.AF_INET, ("127.0.0.1", WANTED["port"])),
    "send a datagram": send_to_resolver,
    "connect to an abstract socket": lambda: reach(socket.AF_UNIX, "\0" + WANTED["name"]),
    "fork": lambda: child(os.fork),
    "vfork": lambda: child(LIBC.vfork),
    "run a program": lambda: os.posix_spawn(sys.executable or "/bin/true", ["x"], {}),
    "replace itself": lambda: os.execv("/bin/true", ["true"]),
    "daemonise": os.setsid,
    "make a user namespace": lambda: called("unshare", 0x10000000),
    "become root": lambda: os.setuid(0),
    "mount": lambda: called("mount", b"none", WANTED["folder"].encode(), b"tmpfs", 0, None),
    "keep shared memory": lambda: called("shmget", 0x7057, 4096, 0o1600),
    "memory file": lambda: os.memfd_create("x"),
    "io_uring": lambda: system_call(425, 425, 1, ctypes.create_string_buffer(256)),
    "bpf": lambda: system_call(321, 280, 0, ctypes.create_string_buffer(256), 64),
    "keyring": lambda: system_call(250, 219, 0, -3, 1),
    "performance counters": lambda: system_call(298, 241, ctypes.create_string_buffer(128), 0, -1, -1, 0),
    "lift the filter": lambda: called("prctl", 22, 0, 0, 0, 0),
}


def succeeded(attempt):
    try:
        attempt()
    except Exception:  # each refusal has its own exception
        return False
    return True


if __name__ == "__main__":
    tried = WANTED.get("only", list(ATTEMPTS))
    print(json.dumps([name for name in tried if succeeded(ATTEMPTS[name])]))
