"""Whose text is it? Two groups of rows under one model, what tells them apart, and what else could."""
