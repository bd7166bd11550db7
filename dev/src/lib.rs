//! Starts the real parts on loopback: database, S3 server, broker, sink.
