"""Jobs that exist to be measured."""
