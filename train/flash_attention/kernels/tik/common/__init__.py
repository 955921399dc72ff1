"""Modules of all operators: tiles on chip, masks, dropout, ALiBi, terms of the scores."""
