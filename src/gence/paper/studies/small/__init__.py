"""Studies that a CPU does in minutes: unlabelled rows on frozen features, and a small network trained from scratch.

One file each, found by the registry as those of the folder above; `cell_study` is what they share.
"""
