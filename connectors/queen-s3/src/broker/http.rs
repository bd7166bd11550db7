//! Queen over HTTP.
