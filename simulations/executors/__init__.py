"""Ways of running simulated clients; `contract` says what they have in common."""
