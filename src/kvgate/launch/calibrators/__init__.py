"""One calibrator a file: how it is told to put KV scales into a checkpoint."""
