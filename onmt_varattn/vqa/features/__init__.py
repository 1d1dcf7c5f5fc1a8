"""Image features: file formats and the store."""
