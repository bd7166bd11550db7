//! Counts every request by what it was answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

use aws_sdk_s3::config::interceptors::BeforeDeserializationInterceptorContextRef;
use aws_sdk_s3::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_s3::error::BoxError;

use crate::observe::status::Status;

/// One request. Counts itself when it is dropped, so that one that was given up counts too.
#[derive(Debug)]
pub(super) struct Attempt {
    operation: &'static str,
    status: Arc<Status>,
    code: Arc<AtomicU16>,
}

impl Attempt {
    /// A request of `operation`, as the metrics name it.
    pub(super) fn new(operation: &'static str, status: Arc<Status>) -> Self {
        Self {
            operation,
            status,
            code: Arc::default(),
        }
    }

    /// The operation.
    pub(super) fn operation(&self) -> &'static str {
        self.operation
    }

    /// What notes the answer's HTTP status; 0 stays where no answer comes.
    pub(super) fn watch(&self) -> Watch {
        Watch(Arc::clone(&self.code))
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.status
            .s3_request(self.operation, self.code.load(Relaxed));
    }
}

/// Notes the status of an answer.
#[derive(Debug)]
pub(super) struct Watch(Arc<AtomicU16>);

impl Intercept for Watch {
    fn name(&self) -> &'static str {
        "Watch"
    }

    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        self.0.store(context.response().status().as_u16(), Relaxed);
        Ok(())
    }
}
