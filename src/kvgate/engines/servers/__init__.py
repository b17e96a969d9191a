"""How each kind of server is asked for the distributions of a given text: one file a kind, exported as SERVER."""
