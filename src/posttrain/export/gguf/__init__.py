"""GGUF, the one-file form that llama.cpp runs; needs the package gguf (extra `gguf`), which is imported on use."""
