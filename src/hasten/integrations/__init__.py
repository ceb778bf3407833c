"""Callbacks for frameworks that write the training loop themselves: `lightning`, `transformers`. docs/integrations.md."""
