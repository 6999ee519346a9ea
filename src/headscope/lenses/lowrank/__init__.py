"""The lens `lowrank`."""
