"""Readers, one a file format. A file that is damaged, cut short or not what it should be is named and refused whole."""
