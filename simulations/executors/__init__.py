"""Ways of running simulated clients; `contract` is their interface."""
