"""Experiments as data: specs, training, evaluation, the results store."""
