"""Parts of other frameworks that keep their tasks in a store."""
