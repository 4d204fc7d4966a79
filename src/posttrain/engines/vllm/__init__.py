"""A vLLM server as an engine: started or attached to, given weights while it runs, and verified in all its claims."""
