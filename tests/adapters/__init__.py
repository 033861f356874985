"""Each adapter, by its framework's own suite where there is one."""
