"""Attacks by files: archives, images, tables and models that are damaged, or made by somebody who means harm.

What is held against it: a right result, or one error (a `ValueError` and its kin) that names the file; memory within
bounds; nothing written elsewhere; nothing executed.
"""
