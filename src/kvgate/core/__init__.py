"""L0: values, protocols and errors. Standard library and pydantic only."""
