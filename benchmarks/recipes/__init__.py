"""What the recipes bring, against what their users have."""
