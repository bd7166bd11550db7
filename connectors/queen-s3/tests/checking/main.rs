//! Lakes made by the encoder itself, damaged on purpose, and checked; and pointers given back.

mod adopt;
mod bucket;
mod lake;
mod queen;
mod verify;
