"""The paper's tables: recipes, the runs they ask for, and what comes out of them."""
