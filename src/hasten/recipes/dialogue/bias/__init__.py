"""Count mentions of demographic groups in conversations, and measure whether decisions and scores differ between groups."""
