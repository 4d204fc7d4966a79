"""A seccomp filter that leaves a Python program its own memory, threads and open files, and nothing of the machine.

It is a deny list in front of a last known number: what newer kernels add is refused until it has been looked at.
Refused calls fail with EPERM instead of killing, so that a program that merely probes for something goes on.
Architectures: x86_64 (the x32 numbers are killed) and aarch64.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

DENIED = {
    "new processes, other programs": """
        fork 57 -, vfork 58 -, execve 59 221, execveat 322 281, setpgid 109 154, setsid 112 157""",
    "other processes": """
        rt_sigqueueinfo 129 138, rt_tgsigqueueinfo 297 240, pidfd_send_signal 424 424, pidfd_open 434 434,
        pidfd_getfd 438 438, ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271,
        process_madvise 440 440, process_mrelease 448 448, kcmp 312 272, setrlimit 160 164, setpriority 141 140,
        sched_setscheduler 144 119, sched_setparam 142 118, sched_setattr 314 274, sched_setaffinity 203 122,
        ioprio_set 251 30, move_pages 279 239, migrate_pages 256 238""",
    "network and descriptors of others": """
        socket 41 198, connect 42 203, bind 49 200, listen 50 201, accept 43 202, accept4 288 242, sendmsg 46 211,
        sendmmsg 307 269, recvmsg 47 212, recvmmsg 299 243, setsockopt 54 208""",
    "namespaces and mounts": """
        unshare 272 97, setns 308 268, mount 165 40, umount2 166 39, pivot_root 155 41, chroot 161 51,
        move_mount 429 429, open_tree 428 428, fsopen 430 430, fsconfig 431 431, fsmount 432 432, fspick 433 433,
        mount_setattr 442 442, statmount 457 457, listmount 458 458, swapon 167 224, swapoff 168 225""",
    "parts of the kernel with a history": """
        bpf 321 280, perf_event_open 298 241, userfaultfd 323 282, io_uring_setup 425 425, io_uring_enter 426 426,
        io_uring_register 427 427, keyctl 250 219, add_key 248 217, request_key 249 218, memfd_create 319 279,
        memfd_secret 447 447, open_by_handle_at 304 265, name_to_handle_at 303 264, fanotify_init 300 262,
        fanotify_mark 301 263, remap_file_pages 216 234, mbind 237 235, set_mempolicy 238 237, get_mempolicy 239 236,
        set_mempolicy_home_node 450 450, lookup_dcookie 212 18, uselib 134 -, ustat 136 -, sysfs 139 -, _sysctl 156 -,
        nfsservctl 180 42, modify_ldt 154 -, personality 135 92""",
    "this filter and its kin": """
        prctl 157 167, seccomp 317 277, landlock_create_ruleset 444 444, landlock_add_rule 445 445,
        landlock_restrict_self 446 446""",
    "the machine": """
        kexec_load 246 104, kexec_file_load 320 294, init_module 175 105, finit_module 313 273, delete_module 176 106,
        reboot 169 142, acct 163 89, quotactl 179 60, quotactl_fd 443 443, settimeofday 164 170, clock_settime 227 112,
        adjtimex 159 171, clock_adjtime 305 266, sethostname 170 161, setdomainname 171 162, iopl 172 -, ioperm 173 -,
        syslog 103 116, vhangup 153 58, sync 162 81, syncfs 306 267""",
    "memory and queues that outlive a process": """
        shmget 29 194, shmat 30 196, shmctl 31 195, shmdt 67 197, semget 64 190, semop 65 193, semctl 66 191,
        semtimedop 220 192, msgget 68 186, msgsnd 69 189, msgrcv 70 188, msgctl 71 187, mq_open 240 180,
        mq_unlink 241 181, mq_timedsend 242 182, mq_timedreceive 243 183, mq_notify 244 184, mq_getsetattr 245 185""",
    "who we are": """
        setuid 105 146, setgid 106 144, setreuid 113 145, setregid 114 143, setresuid 117 147, setresgid 119 149,
        setfsuid 122 151, setfsgid 123 152, setgroups 116 159, capset 126 91""",
    "files: Landlock knows nothing of modes, owners, times and attributes, and of truncation only since Linux 6.2": """
        chmod 90 -, fchmod 91 52, fchmodat 268 53, fchmodat2 452 452, chown 92 -, fchown 93 55, lchown 94 -,
        fchownat 260 54, utime 132 -, utimes 235 -, futimesat 261 -, utimensat 280 88, setxattr 188 5,
        lsetxattr 189 6, fsetxattr 190 7, removexattr 197 14, lremovexattr 198 15, fremovexattr 199 16,
        truncate 76 45, ftruncate 77 46, fallocate 285 47, mkdir 83 -, mkdirat 258 34, rmdir 84 -, unlink 87 -,
        unlinkat 263 35, rename 82 -, renameat 264 38, renameat2 316 276, link 86 -, linkat 265 37, symlink 88 -,
        symlinkat 266 36, mknod 133 -, mknodat 259 33, creat 85 -""",
}
"""Refused whatever the arguments: name, number on x86_64, number on aarch64."""
SPECIAL = """
    clone 56 220, clone3 435 435, openat2 437 437, kill 62 129, tgkill 234 131, tkill 200 130, prlimit64 302 261,
    open 2 -, openat 257 56, fcntl 72 25, ioctl 16 29, socketpair 53 199"""
"""Refused for some arguments, or as if this kernel did not have them."""
LAST_KNOWN = 462
"""mseal, Linux 6.10. Both architectures number new calls alike."""

ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Column of the tables above and AUDIT_ARCH."""

_LIBC = ctypes.CDLL(None, use_errno=True)
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN, _AND = 0x20, 0x15, 0x35, 0x45, 0x06, 0x54
_KILL, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_NR, _ARCH, _X32 = 0, 4, 0x40000000
_OWN_PID = 0x7E57BEEF
"""Stands for the process id in a filter that is made before the process is."""

CLONE_THREAD, O_ACCMODE, O_TRUNC, AF_UNIX, SOCK_STREAM = 0x10000, 0o3, 0o1000, 1, 1
FCNTL_DENIED = (8, 10, 15, 1024, 1026)
"""F_SETOWN, F_SETSIG, F_SETOWN_EX: with them a pipe of one's own sends SIGKILL to another. F_SETLEASE, F_NOTIFY."""
IOCTL_DENIED = (0x5412, 0x541C, 0x5452, 0x8901, 0x8902)
"""TIOCSTI, TIOCLINUX: typing into a terminal. FIOASYNC, FIOSETOWN, SIOCSPGRP: signals, as above."""


def numbers(table: str, column: int) -> dict[str, int]:
    """{name: number} of a table for one architecture."""
    rows = (row.split() for row in table.split(","))
    return {row[0]: int(row[1 + column]) for row in rows if row[1 + column] != "-"}


def build(machine: str | None = None) -> bytes:
    """The filter as BPF instructions, with _OWN_PID where the process id belongs. OSError: an unknown processor."""
    machine = machine or platform.machine()
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
    """Put the calling thread, and every thread that it starts, under the filter. Needs PR_SET_NO_NEW_PRIVS."""
    code = template.replace(struct.pack("I", _OWN_PID), struct.pack("I", pid))
    buffer = ctypes.create_string_buffer(code, len(code))
    head = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    if _LIBC.prctl(22, 2, ctypes.c_char_p(head), 0, 0):  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
        raise OSError(ctypes.get_errno(), "the seccomp filter was not accepted")


def _rules() -> dict[str, list[bytes]]:
    """What follows once the call is known; each path of each ends with a verdict."""
    allow, refuse, absent = _op(_RETURN, _ALLOW), _refuse(errno.EPERM), _refuse(errno.ENOSYS)
    to_oneself = [_load_argument(0), _op(_EQUAL, _OWN_PID, 0, 1), allow, refuse]
    return {
        "clone": [_load_argument(0), _op(_ANY_BIT, CLONE_THREAD, 0, 1), allow, refuse],
        "clone3": [absent],  # its flags lie in memory, where no filter sees them; the C library then uses clone
        "openat2": [absent],
        "kill": to_oneself,
        "tgkill": to_oneself,
        "tkill": to_oneself,
        "prlimit64": [  # reading one's own limits
            *(_load_argument(0), _op(_EQUAL, 0, 0, 5)),
            *(_load_argument(2), _op(_EQUAL, 0, 0, 3)),
            *(_load_argument(2, high=True), _op(_EQUAL, 0, 0, 1)),
            *(allow, refuse),
        ],
        "open": _no_truncation(1),
        "openat": _no_truncation(2),
        "fcntl": _none_of(FCNTL_DENIED),
        "ioctl": _none_of(IOCTL_DENIED),
        "socketpair": [  # asyncio wakes itself through one; it reaches nobody else
            *(_load_argument(0), _op(_EQUAL, AF_UNIX, 0, 4)),
            *(_load_argument(1), _op(_AND, 0xF), _op(_EQUAL, SOCK_STREAM, 0, 1)),
            *(allow, refuse),
        ],
    }


def _no_truncation(flags: int) -> list[bytes]:
    """O_RDONLY | O_TRUNC empties a file that Landlock before Linux 6.2 only sees being read."""
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
    """The low (or high) 32 bits of an argument; both architectures are little-endian."""
    return _op(_LOAD, 16 + 8 * index + 4 * high)
