//! A private PostgreSQL cluster in a folder of its own.
