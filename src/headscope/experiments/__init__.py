"""Things to do with mechanisms and models, each with its tables and figures."""
