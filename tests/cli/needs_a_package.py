"""A recipe whose package is not there."""

import no_such_package  # type: ignore[import-not-found]  # noqa: F401  it is not there on purpose
