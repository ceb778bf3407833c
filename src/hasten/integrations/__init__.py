"""Callbacks for frameworks with their own training loop: `lightning` and `transformers`. See docs/guides/integrations.md."""
