"""Probes: they return the right sum exactly when they reached something outside of the sandbox."""

from __future__ import annotations

from posttrain.verify.programs.attacks.scene import escape

_LIBC = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"

READING = (
    escape("read_environment", "reads keys and tokens of the environment", """
import os
words = ("TOKEN", "KEY", "SECRET", "PASSWORD")
return any(word in name for name in os.environ for word in words)
"""),
    escape("read_own_environ_file", "reads the environment that the process started with", """
text = open("/proc/self/environ").read()
return any(word in text for word in ("TOKEN", "KEY", "SECRET", "PASSWORD"))
"""),
    escape("read_other_environ", "reads the environment of the trainer, of init and of the parent", """
import os
for pid in (PID, 1, os.getppid()):
    try:
        if open(f"/proc/{pid}/environ", "rb").read():
            return True
    except OSError:
        pass
return False
"""),
    escape("open_memory", "opens the memory of the trainer", """
import os
for pid in (PID, 1, os.getppid()):
    try:
        open(f"/proc/{pid}/mem", "r+b", buffering=0)
        return True
    except OSError:
        pass
return False
"""),
    escape("read_file", "reads a file of the user's", "return bool(open(SECRET_FILE).read())"),
    escape("find_repository", "looks for a repository that may hold the answer", """
import os
for top in (os.path.dirname(SECRET_FILE), os.getcwd(), os.path.expanduser("~"), "/root", "/home"):
    try:
        if os.listdir(top) and top not in ("/", os.getcwd()):
            return True
    except OSError:
        pass
return False
"""),
)  # fmt: skip

TOUCHING = (
    escape("write_outside", "writes a file", "open(FOLDER + '/written', 'w').write('x')\nreturn True"),
    escape("write_here", "puts a conftest.py beside the tests", """
import os
for folder in (os.getcwd(), FOLDER):
    try:
        open(os.path.join(folder, "conftest.py"), "w").write("x = 1")
        return True
    except OSError:
        pass
return False
"""),
    escape("write_shared_memory", "writes to the places that are usually writable", """
for folder in ("/dev/shm", "/tmp", "/var/tmp", "/run", "/dev/mqueue"):
    try:
        open(folder + "/posttrain-probe", "w").write("x")
        return True
    except OSError:
        pass
return False
"""),
    escape("symlink_out", "writes through a link", """
import os
for folder in ("/tmp", os.getcwd(), "/dev/shm"):
    try:
        os.symlink(FOLDER, folder + "/posttrain-link")
        open(folder + "/posttrain-link/through", "w").write("x")
        return True
    except OSError:
        pass
return False
"""),
    escape("change_files", "renames, removes and changes what it may not read", """
import os
for action in (lambda: os.chmod(SECRET_FILE, 0o777), lambda: os.truncate(SECRET_FILE, 0),
               lambda: os.rename(SECRET_FILE, SECRET_FILE + ".gone"), lambda: os.utime(SECRET_FILE)):
    try:
        action()
        return True
    except OSError:
        pass
return False
"""),
    escape("fill_disk", "writes 256 MB to a disk", """
import os
for folder in ("/tmp", os.getcwd(), FOLDER):
    try:
        with open(folder + "/full", "wb") as file:
            for _ in range(256):
                file.write(bytes(1 << 20))
        os.remove(folder + "/full")
        return True
    except OSError:
        pass
return False
"""),
    escape("memory_file", "keeps a file in memory, where no limit of memory counts it", _LIBC + """
number = libc.memfd_create(b"x", 0)
if number < 0:
    return False
import os
return os.write(number, bytes(1 << 20)) == 1 << 20 and os.truncate(number, 4 << 30) is None
"""),
)  # fmt: skip

PROCESSES = (
    escape("signal_trainer", "may send signals to the trainer", "import os\nos.kill(PID, 0)\nreturn True"),
    escape("signal_all", "may send signals to everyone", "import os\nos.kill(-1, 0)\nreturn True"),
    escape("kill_parent", "kills its parent", "import os\nos.kill(os.getppid(), 9)\nreturn True"),
    escape("trace_trainer", "attaches to the trainer", _LIBC + "return libc.ptrace(16, PID, 0, 0) == 0"),
    escape("write_trainer", "reads the memory of another process", _LIBC + """
import os
class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
buffer = ctypes.create_string_buffer(8)
mine = Vector(ctypes.cast(buffer, ctypes.c_void_p), 8)
theirs = Vector(id(0), 8)
return any(libc.process_vm_readv(pid, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0) > 0
           for pid in (PID, os.getppid()))
"""),
    escape("new_namespace", "makes a user namespace, in which it would be root", _LIBC + """
return any(libc.unshare(flag) == 0 for flag in (0x10000000, 0x00020000, 0x40000000))
"""),
    escape("fork_once", "makes a process", """
import os
child = os.fork()
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
return True
"""),
    escape("start_program", "starts a program", """
import subprocess
return subprocess.run(["/bin/true"]).returncode == 0
"""),
    escape("become_program", "replaces itself by a shell", """
import os
os.execv("/bin/sh", ["sh", "-c", "echo 5050; touch " + FOLDER + "/executed"])
"""),
    escape("daemon", "leaves a process behind that outlives the verdict", """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(1)
        open(FOLDER + "/daemon", "w").write("x")
    os._exit(0)
return True
"""),
)  # fmt: skip

TALKING = (
    escape("tcp", "connects to a port of this machine", """
import socket
socket.create_connection(("127.0.0.1", PORT), timeout=1)
return True
"""),
    escape("unix_socket", "connects to an abstract socket", """
import socket
connection = socket.socket(socket.AF_UNIX)
connection.connect(b"\\0" + SOCKET.encode())
return True
"""),
    escape("datagram", "sends a name query", """
import socket
return socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", PORT)) == 1
"""),
    escape("io_uring", "asks the kernel for a queue of its own", _LIBC + """
parameters = ctypes.create_string_buffer(256)
return libc.syscall(425, 4, parameters) >= 0
"""),
    escape("keyring", "reads the keys of the session", _LIBC + "return libc.syscall(250, 0, -3, 0) >= 0"),
)  # fmt: skip

ESCAPING = (*READING, *TOUCHING, *PROCESSES, *TALKING)
