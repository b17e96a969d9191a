"""L7: one file a verb; each exports `register(app)` and imports what it needs only when it runs."""
