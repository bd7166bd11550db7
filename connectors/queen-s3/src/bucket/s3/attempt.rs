//! Counts every request by what it was answered, and bounds the answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

use aws_sdk_s3::config::interceptors::{
    BeforeDeserializationInterceptorContextMut, BeforeDeserializationInterceptorContextRef,
};
use aws_sdk_s3::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_s3::error::BoxError;
use aws_sdk_s3::primitives::SdkBody;
use http_body_util::Limited;

use crate::limits::STORE_ANSWER_BYTES;
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

    /// What notes the answer's HTTP status, and ends a body that has no end; 0 stays where no answer
    /// comes.
    pub(super) fn watch(&self) -> Watch {
        Watch {
            code: Arc::clone(&self.code),
            has_content: self.operation == "get",
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.status
            .s3_request(self.operation, self.code.load(Relaxed));
    }
}

/// Notes the status of an answer and bounds its body.
#[derive(Debug)]
pub(super) struct Watch {
    code: Arc<AtomicU16>,
    has_content: bool,
}

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
        let status = context.response().status();
        self.code.store(status.as_u16(), Relaxed);
        Ok(())
    }

    fn modify_before_deserialization(
        &self,
        context: &mut BeforeDeserializationInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let answer = context.response_mut();
        // Whoever reads an object's content bounds it; every other answer is read whole.
        if self.has_content && answer.status().is_success() {
            return Ok(());
        }
        let body = std::mem::replace(answer.body_mut(), SdkBody::taken());
        *answer.body_mut() = SdkBody::from_body_1_x(Limited::new(body, STORE_ANSWER_BYTES));
        Ok(())
    }
}
