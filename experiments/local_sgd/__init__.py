"""Asynchronous local SGD in virtual time: a published toy study reproduced (Liu et al., arXiv 2401.09135)."""
