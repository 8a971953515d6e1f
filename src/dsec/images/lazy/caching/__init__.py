"""What of lazy layers is on this host, and how one becomes whole."""
