//! Errors of running work on a device or in the emulator.
