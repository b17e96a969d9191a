"""What has been published about KV caches in few bits: claims with numbers, caveats and sources. Never averaged.

`claims/*.toml` holds the claims, one file a publication or topic; `families.toml` says which models are related.
"""
