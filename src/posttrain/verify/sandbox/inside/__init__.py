"""What runs on the other side: the fork-server and what its children give up. Standard library only."""
