"""The code on the other side: the fork-server, and the rights that its children give up. Standard library only."""
