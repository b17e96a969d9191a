"""From text of unknown origin to commands. Nothing that is read is ever run, expanded by a shell or fetched."""
