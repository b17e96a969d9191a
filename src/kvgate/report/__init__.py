"""L5: a finished run as HTML, Markdown, JUnit XML and JSON. Pure over values; only `write` touches the disk.

Entry points: `report.html.html`, `report.markdown.markdown`, `report.junit.junit`, `report.json.check_json` and
`report.write.write_all`. Nothing here measures, judges or opens a store.
"""
