//! Bearer tokens: who may call which route.

mod level;
mod token;

pub use level::{Level, Need, need};
pub use token::{Authority, Refusal};
