//! Lakes made by the encoder itself, damaged on purpose, and checked; and pointers given back.

mod adopt;
mod lake;
mod memory;
mod verify;
