"""The protocols in which callers speak: what is read of a call and of its answer, and how errors look."""
