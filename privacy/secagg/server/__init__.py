"""The server's side of secure rounds, over any Flower grid."""
