"""SGLang's pages."""

from kvgate.engines.pages._reader import FactsReader

PAGES = FactsReader("sglang")
