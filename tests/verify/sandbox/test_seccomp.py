"""The filter, instruction by instruction: a BPF interpreter runs it for both processors and compares it with the
headers."""

from __future__ import annotations

import errno
import re
import struct
from pathlib import Path

import pytest
from tests.catalogue import catalogue

from posttrain.verify.sandbox.inside import seccomp
from posttrain.verify.sandbox.inside.seccomp import ARCHITECTURES, DENIED, LAST_KNOWN, SPECIAL, numbers

ALLOW, KILL = 0x7FFF0000, 0x80000000
PID = seccomp._OWN_PID
HEADERS = {
    "x86_64": [Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), Path("/usr/include/asm/unistd_64.h")],
    "aarch64": [Path("/usr/include/asm-generic/unistd.h")],
}


def decide(machine: str, number: int, *arguments: int, arch: int | None = None) -> str:
    """allow, kill, or the name of the error."""
    audit = ARCHITECTURES[machine][1] if arch is None else arch
    data = struct.pack("<IIQ6Q", number, audit, 0, *arguments, *[0] * (6 - len(arguments)))
    code = seccomp.build(machine)
    lines = [struct.unpack_from("HBBI", code, at) for at in range(0, len(code), 8)]
    at, value = 0, 0
    while True:
        operation, true, false, k = lines[at]
        at += 1
        if operation == 0x20:
            (value,) = struct.unpack_from("<I", data, k)
        elif operation == 0x54:
            value &= k
        elif operation == 0x06:
            if k in (ALLOW, KILL):
                return "allow" if k == ALLOW else "kill"
            return errno.errorcode[k & 0xFFFF]
        else:
            test = {0x15: value == k, 0x35: value >= k, 0x45: bool(value & k)}[operation]
            at += true if test else false


def named(machine: str) -> dict[str, int]:
    tables = [numbers(table, ARCHITECTURES[machine][0]) for table in (*DENIED.values(), SPECIAL)]
    return {name: number for table in tables for name, number in table.items()}


@catalogue("machine", ARCHITECTURES)
def test_the_numbers_are_those_of_the_kernel(machine):
    header = next((path for path in HEADERS[machine] if path.exists()), None)
    if header is None:
        pytest.skip("the headers of the kernel are not installed")
    found = {m[1]: int(m[2]) for m in re.finditer(r"#define __NR(?:3264)?_(\w+) (\d+)", header.read_text())}
    ours = named(machine)
    assert len(set(ours.values())) == len(ours)
    assert {name: found[name] for name in ours if name in found} == {n: k for n, k in ours.items() if n in found}


@pytest.mark.slow
@catalogue("machine", ARCHITECTURES)
def test_what_is_denied_is_denied_whatever_the_arguments(machine):
    for table in DENIED.values():
        for name, number in numbers(table, ARCHITECTURES[machine][0]).items():
            assert decide(machine, number) == decide(machine, number, PID, 1, 2) == "EPERM", name


@catalogue(
    "name, arguments, verdict",
    [
        ("clone", (0x3D0F00,), "allow"),  # the flags of a thread
        ("clone", (0x11,), "EPERM"),  # fork
        ("clone", (0x10000011 & ~0x10000,), "EPERM"),  # CLONE_NEWUSER
        ("clone3", (), "ENOSYS"),
        ("openat2", (), "ENOSYS"),
        ("kill", (PID, 9), "allow"),
        ("kill", (PID + 1, 9), "EPERM"),
        ("kill", (0, 9), "EPERM"),
        ("kill", (0xFFFFFFFF, 9), "EPERM"),
        ("tgkill", (PID, 7, 6), "allow"),
        ("tgkill", (1, 1, 9), "EPERM"),
        ("prlimit64", (0, 7, 0, 123), "allow"),
        ("prlimit64", (0, 7, 123), "EPERM"),
        ("prlimit64", (0, 7, 1 << 32), "EPERM"),
        ("prlimit64", (PID + 1, 7, 0, 123), "EPERM"),
        ("openat", (0, 0, 0), "allow"),
        ("openat", (0, 0, 0o1000), "EPERM"),  # O_RDONLY | O_TRUNC
        ("openat", (0, 0, 0o2000000), "allow"),  # O_CLOEXEC
        ("fcntl", (3, 1), "allow"),
        ("fcntl", (3, 8), "EPERM"),  # F_SETOWN
        ("fcntl", (3, 10), "EPERM"),  # F_SETSIG
        ("ioctl", (0, 0x5401), "allow"),  # TCGETS
        ("ioctl", (0, 0x5412), "EPERM"),  # TIOCSTI
        ("socketpair", (1, 0o2000001), "allow"),  # AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC
        ("socketpair", (1, 2), "EPERM"),  # a datagram could be sent to any name
        ("socketpair", (2, 1), "EPERM"),
    ],
)
@catalogue("machine", ARCHITECTURES)
def test_some_calls_depend_on_their_arguments(machine, name, arguments, verdict):
    assert decide(machine, named(machine)[name], *arguments) == verdict


@catalogue("machine", ARCHITECTURES)
def test_calls_of_another_architecture_end_the_program(machine):
    assert decide(machine, 0, arch=0x40000003) == "kill"  # i386, whose numbers mean other calls


def test_the_x32_numbers_end_the_program():
    assert decide("x86_64", 0x40000000 + 39) == "kill"


@catalogue("machine", ARCHITECTURES)
def test_calls_that_are_newer_than_the_table_do_not_exist(machine):
    assert decide(machine, LAST_KNOWN) == "allow"
    assert decide(machine, LAST_KNOWN + 1) == decide(machine, 600) == "ENOSYS"


def test_an_ordinary_program_needs_nothing_that_is_denied():
    reads = {"read": 0, "write": 1, "mmap": 9, "brk": 12, "futex": 202, "getrandom": 318, "exit_group": 231}
    assert {name: decide("x86_64", number) for name, number in reads.items()} == dict.fromkeys(reads, "allow")


def test_another_processor_has_no_filter():
    with pytest.raises(OSError, match="no seccomp filter for the processor riscv64"):
        seccomp.build("riscv64")
