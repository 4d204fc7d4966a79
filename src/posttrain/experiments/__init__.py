"""Several runs that answer one question: `compare` and `sweep`. Each run is an ordinary one, in a process of its own."""
