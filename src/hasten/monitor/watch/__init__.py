"""Watch runs: in the browser, fed into Trackio and shown by its dashboard and a view of our own, or in the terminal."""
