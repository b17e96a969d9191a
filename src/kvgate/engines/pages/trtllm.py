"""TensorRT-LLM's pages."""

from kvgate.engines.pages._reader import FactsReader

PAGES = FactsReader("trtllm")
