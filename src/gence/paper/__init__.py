"""The paper's exhibits: one file per table or figure."""
