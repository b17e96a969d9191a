"""Parts of the needle suite: the haystack generator, fitting it to a length, metrics."""
