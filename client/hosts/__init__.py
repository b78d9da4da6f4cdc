"""Several machines of one site that train together: who belongs to them, and what carries their bytes."""
