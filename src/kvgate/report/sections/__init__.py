"""A run cut into the sections of a report. Values only: HTML and Markdown render the same ones."""
