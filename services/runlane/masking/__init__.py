"""What a secret is, and a text without it: what goes to people is searched by the same rules wherever it comes from."""
