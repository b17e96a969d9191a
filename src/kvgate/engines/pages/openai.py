"""Pages of a server that no engine's signs identify: what several engines write under the same keys."""

from kvgate.engines.pages._reader import FactsReader

PAGES = FactsReader("openai")
