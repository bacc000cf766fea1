"""Applications to run in virtual time, each with a mistake that seeds find, and without it."""
