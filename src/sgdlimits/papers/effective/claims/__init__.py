"""Claims of Ben Arous, Gheissari and Jagannath, *High-dimensional limit theorems for SGD*, and their computations."""
