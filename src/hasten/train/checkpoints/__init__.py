"""All that a run needs to go on as if it had never stopped: taken in a moment, written aside, found again whole."""
