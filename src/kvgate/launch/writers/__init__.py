"""One engine a file: how its command line asks for a recipe, its baseline and its rollback."""
