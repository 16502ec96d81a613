"""The equations of motion: Lagrangian models, dissipation, rigid bodies (EQUATIONS.md)."""
