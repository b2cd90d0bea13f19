"""A scikit-learn classifier on arrays: features or images in, a model that finds the important classes out."""

from camri.estimator.classifier import CamriClassifier

__all__ = ["CamriClassifier"]
