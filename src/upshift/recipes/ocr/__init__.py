"""Text detection for OCR: DBNet, its targets, its training and its validation."""
