"""Landlock by system calls: a process gives up all files, ports, signals and abstract sockets except those it names.

Versions of the interface (ABI) by kernel: 1 = 5.13, 2 = 5.19, 3 = 6.2 (truncation), 4 = 6.7 (TCP), 5 = 6.10 (device
ioctls), 6 = 6.12 (signals, abstract sockets). The seccomp filter also covers what older kernels lack.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct

_LIBC = ctypes.CDLL(None, use_errno=True)
_CREATE, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 1, 1 << 2, 1 << 3
_QUIET = 1
"""LANDLOCK_RESTRICT_SELF_LOG_SAME_EXEC_OFF (ABI 7): refusals do not fill the audit log."""


def abi() -> int:
    """The ABI version of this kernel. OSError if Landlock is missing or disabled."""
    return _call(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(1))


def ruleset(readable: list[str], writable: list[str]) -> int:
    """A descriptor of rules that allow opening only these files and folders, with everything in the folders."""
    version = abi()
    files = (1 << 13) - 1 | (version >= 2) << 13 | (version >= 3) << 14 | (version >= 5) << 15
    fields = [files, *([0b11] if version >= 4 else []), *([0b11] if version >= 6 else [])]
    attributes = struct.pack(f"{len(fields)}Q", *fields)
    rules = _call(_CREATE, ctypes.c_char_p(attributes), ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0))
    for path in readable:
        _allow(rules, path, _READ_FILE, _READ_DIR)
    for path in writable:
        _allow(rules, path, _READ_FILE | _WRITE_FILE | ((version >= 3) << 14), 0)
    return rules


def restrict(rules: int) -> None:
    """Apply the rules to the calling thread and all that it starts, permanently. Needs PR_SET_NO_NEW_PRIVS."""
    _call(_RESTRICT_SELF, ctypes.c_int(rules), ctypes.c_uint32(_QUIET if abi() >= 7 else 0))


def _allow(rules: int, path: str, on_files: int, on_folders: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):  # what we cannot reach, our children cannot either
        return
    try:
        allowed = on_files | (on_folders if stat.S_ISDIR(os.fstat(place).st_mode) else 0)
        rule = struct.pack("=Qi", allowed, place)
        _call(_ADD_RULE, ctypes.c_int(rules), ctypes.c_int(1), ctypes.c_char_p(rule), ctypes.c_uint32(0))
    finally:
        os.close(place)


def _call(number: int, *arguments: object) -> int:
    result = _LIBC.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"Landlock: {os.strerror(code)}")
    return result
