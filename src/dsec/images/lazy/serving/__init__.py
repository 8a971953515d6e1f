"""The process that shows lazy layers to the kernel, and who speaks to it."""
