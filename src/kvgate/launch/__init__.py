"""Commands that serve a recipe, its baseline and its rollback, per engine. Text only; nothing is started."""
