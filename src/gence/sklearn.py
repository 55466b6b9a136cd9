"""The library as scikit-learn sees it: ``from gence.sklearn import GenCEClassifier``."""

from gence.integrations import GenCEClassifier

__all__ = ["GenCEClassifier"]
