"""The shop that the pages of `docs/` speak of: its models are real, its tasks are the pages'."""
