"""Commands that serve a recipe, its baseline and its rollback. Text only; nothing is started.

    ask.launch(words) -> Ask -> Writer (found by name) -> Commands: three `Serve`s, files, calibration steps, notes

A writer knows its engine alone. It pins what the engine would choose by itself, spells out what `auto` would follow,
and says no where a command would not do what it says. Knows nothing of whether a recipe is any good.
"""
