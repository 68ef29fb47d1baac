"""Helpers that know nothing of graphs and messages: files, progress, tables, event loops."""
