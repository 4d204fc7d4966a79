"""Verifiers of mathematics and code, and the sandbox that runs foreign programs."""
