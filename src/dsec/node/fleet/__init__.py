"""A node among its peers: how full they are, and which of its sandboxes go to them."""
