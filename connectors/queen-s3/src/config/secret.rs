//! Values that no log line, error or panic may show.

use std::fmt;

/// A secret of the configuration. It prints as `<secret>` whatever the format.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Takes the secret in.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// The value itself, for the call that it authenticates and for nothing else.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<secret>")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_never_prints_itself() {
        let secret = Secret::new("hunter2");
        assert_eq!(
            format!("{secret:?} {:#?}", Some(&secret)),
            "<secret> Some(\n    <secret>,\n)"
        );
        assert_eq!(secret.expose(), "hunter2");
    }
}
