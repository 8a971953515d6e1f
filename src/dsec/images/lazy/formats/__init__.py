"""What is written down of a published layer: manifest, stored chunk, document. Pure."""
