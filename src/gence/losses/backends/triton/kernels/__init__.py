"""The kernels themselves: each is read in one place."""
