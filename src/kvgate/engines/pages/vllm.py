"""vLLM's pages."""

from kvgate.engines.pages._reader import FactsReader

PAGES = FactsReader("vllm")
