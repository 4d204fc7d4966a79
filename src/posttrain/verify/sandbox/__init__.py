"""The sandbox for programs that a model wrote. Each runs in a fresh, confined process from a warm fork-server.

    with open_sandbox() as sandbox:
        ran = sandbox.run("print(int(input()) + 1)", stdin=b"41")
        ran.stdout, ran.ended                                           # b"42\\n", "exited"

docs/sandbox.md says what a program may do. `inside/` implements the confinement and imports nothing of posttrain.
"""

from posttrain.errors import SandboxUnavailable
from posttrain.verify.sandbox.process import Process
from posttrain.verify.sandbox.records import Ended, Limits, Ran
from posttrain.verify.sandbox.sandbox import UNSAFE, Sandbox, open_sandbox

__all__ = ["UNSAFE", "Ended", "Limits", "Process", "Ran", "Sandbox", "SandboxUnavailable", "open_sandbox"]
