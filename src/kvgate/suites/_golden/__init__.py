"""Parts of the golden suite: the file format, its reader, confirmation by reruns, metrics."""
