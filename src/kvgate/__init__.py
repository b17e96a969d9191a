"""kvgate: may I store the KV cache in fewer bits, on my model, engine build and context lengths?"""

__version__ = "0.1.0"
