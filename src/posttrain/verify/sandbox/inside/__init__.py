"""The code inside the sandbox: the fork-server, and the rights that its children give up. Standard library only."""
