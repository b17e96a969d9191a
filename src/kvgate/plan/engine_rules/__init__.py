"""What each engine reserves for a geometry: one file an engine. Ideal bytes are in `plan/price.py`."""
