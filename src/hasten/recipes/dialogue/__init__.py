"""Counselling dialogues trained in stages: checked conversations, packed rows, bias monitoring and voice."""
