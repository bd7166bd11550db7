//! A bucket over the S3 API.
