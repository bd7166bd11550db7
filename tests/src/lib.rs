//! What the end-to-end tests share: events to push, and the questions they ask of a lake.

mod events;
mod load;
mod reader;
mod settled;

pub use events::{events, one_partition};
pub use load::{Load, check_log};
pub use reader::count_with_duckdb;
pub use settled::{assert_windows_tile, settled};
