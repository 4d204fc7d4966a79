"""Three notebooks, stored without outputs; `make notebooks` runs them."""
