//! The window engine: what was read, what may be closed. Pure: no clock, no I/O.
