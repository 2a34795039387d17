"""A package of plug-ins, one file for an entry, that uses what is public."""

from . import augmentation, backbone, dataset, method, score, waves  # noqa: F401 - registers the entries
