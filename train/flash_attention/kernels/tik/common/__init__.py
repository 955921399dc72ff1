"""What both operators share: tiles on chip, masks, dropout, ALiBi, terms of the scores that the Cube adds."""
