"""The commands of `hasten`, one file each."""
