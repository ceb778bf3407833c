"""Jobs made for measurements."""
