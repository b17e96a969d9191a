"""llama.cpp's pages."""

from kvgate.engines.pages._reader import FactsReader

PAGES = FactsReader("llama_cpp")
