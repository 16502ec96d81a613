"""Tolerances by cause, each with its reason; used with rtol and atol relative to the scale."""

# Rounding of a few hundred float64 operations.
RTOL_F64 = 1e-10
# Cholesky solve of a mass matrix with condition number up to about 1e4 in float64.
RTOL_F64_SOLVE = 1e-9
# Rounding of a few hundred float32 operations on terms that partly cancel.
RTOL_F32 = 2e-5
# Central difference with step 1e-6 in float64: truncation and rounding meet near 1e-9.
RTOL_FINITE_DIFFERENCE = 1e-6
# Cholesky solve in float32: rounding times a condition number of up to some hundreds.
RTOL_F32_SOLVE = 5e-3
