"""strop inside other people's programs; each module needs that program's package."""
