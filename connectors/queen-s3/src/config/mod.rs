//! The configuration: every variable in one table.
