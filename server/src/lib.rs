//! The broker: an HTTP message log on PostgreSQL.
