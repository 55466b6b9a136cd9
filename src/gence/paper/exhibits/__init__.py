"""The paper's tables and figures: one file each, with its grid, its rows and the values that were printed.

Nothing is imported from here by name: the registry finds what the files declare as their `ENTRIES`.
"""
