"""Networks by name, one architecture a file."""

from gence.models.classifier import Backbone, ImageClassifier
from gence.models.registry import create_model, known_models

__all__ = ["Backbone", "ImageClassifier", "create_model", "known_models"]
