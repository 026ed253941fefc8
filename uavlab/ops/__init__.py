"""Pure functions of tensors: geometry and densities."""
