"""The client's side of secure rounds, around any ClientApp."""
