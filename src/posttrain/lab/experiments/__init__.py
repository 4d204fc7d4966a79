"""Several runs that answer one question: `compare` and `sweep`. Each is an ordinary run, in a process of its own."""
