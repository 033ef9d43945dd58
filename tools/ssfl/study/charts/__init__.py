"""Charts of the paper's experiments: PNG files from results in JSON types.

The docstring of each function shows the form of its result. Missing parts are left out of the
chart; StudyError is raised if nothing is left.
"""
