"""Networks by name, one architecture a file."""

from gence.models.classifier import Backbone, ImageClassifier
from gence.models.registry import check_model, create_model, known_models

__all__ = ["Backbone", "ImageClassifier", "check_model", "create_model", "known_models"]
