"""A seccomp filter. It leaves a Python program its own memory, threads and open files, and nothing else of the machine.

It is a deny list up to a last known number. Newer system calls are refused until someone has reviewed them.
Refused calls fail with EPERM instead of killing, so that a program that only probes for a feature continues.
Architectures: x86_64 (the x32 numbers are killed) and aarch64. The calls are in `system_calls.txt`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct


def _tables() -> dict[str, str]:
    """The refused calls, by the purpose that they serve."""
    with open(os.path.join(os.path.dirname(__file__), "system_calls.txt"), encoding="utf-8") as file:
        sections = file.read().split("\n[")[1:]
    return {title: " ".join(rows.split()) for title, _, rows in (section.partition("]") for section in sections)}


DENIED = _tables()
"""Calls that are refused for all arguments."""
SPECIAL = DENIED.pop("for some arguments, or as if this kernel did not have them")
"""Calls that are refused for some arguments, or as if this kernel did not have them."""
LAST_KNOWN = 462
"""The number of mseal (Linux 6.10). Both architectures give new calls the same numbers."""

ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Column in the tables above, and AUDIT_ARCH, by architecture."""

_LIBC = ctypes.CDLL(None, use_errno=True)
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN, _AND = 0x20, 0x15, 0x35, 0x45, 0x06, 0x54
_KILL, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_NR, _ARCH, _X32 = 0, 4, 0x40000000
_OWN_PID = 0x7E57BEEF
"""Placeholder for the process id, because the filter is built before the process exists."""

CLONE_THREAD, O_ACCMODE, O_TRUNC, AF_UNIX, SOCK_STREAM = 0x10000, 0o3, 0o1000, 1, 1
FCNTL_DENIED = (8, 10, 15, 1024, 1026)
"""F_SETOWN, F_SETSIG, F_SETOWN_EX: they let a program's own pipe send SIGKILL to others. Also F_SETLEASE, F_NOTIFY."""
IOCTL_DENIED = (0x5412, 0x541C, 0x5452, 0x8901, 0x8902)
"""TIOCSTI, TIOCLINUX: they type into a terminal. FIOASYNC, FIOSETOWN, SIOCSPGRP: they send signals, as above."""


def numbers(table: str, column: int) -> dict[str, int]:
    """The system call numbers of a table for one architecture, by name."""
    rows = (row.split() for row in table.split(","))
    return {row[0]: int(row[1 + column]) for row in rows if row[1 + column] != "-"}


def build(machine: str | None = None) -> bytes:
    """The filter as BPF instructions, with _OWN_PID in place of the process id. OSError for an unknown processor."""
    machine = machine or os.uname().machine
    if machine not in ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"there is no seccomp filter for the processor {machine}")
    column, audit = ARCHITECTURES[machine]
    code = [_op(_LOAD, _ARCH), _op(_EQUAL, audit, 1, 0), _op(_RETURN, _KILL), _op(_LOAD, _NR)]
    if machine == "x86_64":
        code += [_op(_AT_LEAST, _X32, 0, 1), _op(_RETURN, _KILL)]
    code += [_op(_AT_LEAST, LAST_KNOWN + 1, 0, 1), _refuse(errno.ENOSYS)]
    for number in (n for table in DENIED.values() for n in numbers(table, column).values()):
        code += [_op(_EQUAL, number, 0, 1), _refuse(errno.EPERM)]
    rules = _rules()
    for name, number in numbers(SPECIAL, column).items():
        code += [_op(_EQUAL, number, 0, len(rules[name])), *rules[name]]
    return b"".join([*code, _op(_RETURN, _ALLOW)])


def install(template: bytes, pid: int) -> None:
    """Apply the filter to the calling thread and to all threads that it starts. Needs PR_SET_NO_NEW_PRIVS."""
    code = template.replace(struct.pack("I", _OWN_PID), struct.pack("I", pid))
    buffer = ctypes.create_string_buffer(code, len(code))
    head = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    if _LIBC.prctl(22, 2, ctypes.c_char_p(head), 0, 0):  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
        raise OSError(ctypes.get_errno(), "the seccomp filter was not accepted")


def _rules() -> dict[str, list[bytes]]:
    """The instructions for each special call. Every path ends with a verdict."""
    allow, refuse, absent = _op(_RETURN, _ALLOW), _refuse(errno.EPERM), _refuse(errno.ENOSYS)
    to_oneself = [_load_argument(0), _op(_EQUAL, _OWN_PID, 0, 1), allow, refuse]
    return {
        "clone": [_load_argument(0), _op(_ANY_BIT, CLONE_THREAD, 0, 1), allow, refuse],
        "clone3": [absent],  # its flags are in memory, where no filter sees them; the C library falls back to clone
        "openat2": [absent],
        "kill": to_oneself,
        "tgkill": to_oneself,
        "tkill": to_oneself,
        "prlimit64": [  # a process may read its own limits
            *(_load_argument(0), _op(_EQUAL, 0, 0, 5)),
            *(_load_argument(2), _op(_EQUAL, 0, 0, 3)),
            *(_load_argument(2, high=True), _op(_EQUAL, 0, 0, 1)),
            *(allow, refuse),
        ],
        "open": _no_truncation(1),
        "openat": _no_truncation(2),
        "fcntl": _none_of(FCNTL_DENIED),
        "ioctl": _none_of(IOCTL_DENIED),
        "socketpair": [  # asyncio wakes itself with it; it reaches no other process
            *(_load_argument(0), _op(_EQUAL, AF_UNIX, 0, 4)),
            *(_load_argument(1), _op(_AND, 0xF), _op(_EQUAL, SOCK_STREAM, 0, 1)),
            *(allow, refuse),
        ],
    }


def _no_truncation(flags: int) -> list[bytes]:
    """Refuse O_RDONLY | O_TRUNC. It empties a file, and Landlock before Linux 6.2 treats it as reading."""
    test = _op(_EQUAL, O_TRUNC, 0, 1)
    return [_load_argument(flags), _op(_AND, O_ACCMODE | O_TRUNC), test, _refuse(errno.EPERM), _op(_RETURN, _ALLOW)]


def _none_of(values: tuple[int, ...]) -> list[bytes]:
    tests = [line for value in values for line in (_op(_EQUAL, value, 0, 1), _refuse(errno.EPERM))]
    return [_load_argument(1), *tests, _op(_RETURN, _ALLOW)]


def _op(code: int, k: int, true: int = 0, false: int = 0) -> bytes:
    return struct.pack("HBBI", code, true, false, k)


def _refuse(number: int) -> bytes:
    return _op(_RETURN, _ERRNO | number)


def _load_argument(index: int, *, high: bool = False) -> bytes:
    """Load the low (or high) 32 bits of an argument. Both architectures are little-endian."""
    return _op(_LOAD, 16 + 8 * index + 4 * high)
