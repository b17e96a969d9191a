"""Readers of engines' own pages, one file an engine: which engine it is, and what its pages say of its KV cache."""
