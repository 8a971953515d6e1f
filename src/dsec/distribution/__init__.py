"""How chunks get from node to node: who has what, whom to ask, how much to send, whom not to believe. Pure."""
