//! Reads variables by the table's rules and collects every problem on the way.

use std::ffi::OsString;
use std::fmt;

use super::Secret;
use super::variables::{Accepts, DefaultValue, Variable};

/// Characters of a refused value that are shown.
const SHOWN_VALUE_CHARS: usize = 200;

/// One thing that is wrong with the configuration. Prints as one line that names the variable,
/// the value unless it is secret, and what is accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The variable to edit.
    pub variable: &'static str,
    text: String,
}

impl Problem {
    /// The value of `variable` is refused; `why` says more than the accepted values do.
    fn refused(variable: &Variable, value: &str, why: Option<&str>) -> Self {
        let value = if variable.secret {
            "the value (secret, not shown)".to_owned()
        } else if value.contains("://") && value.contains('@') {
            "the value (it may hold a password, not shown)".to_owned()
        } else {
            let cut: String = value.chars().take(SHOWN_VALUE_CHARS).collect();
            let more = if cut.len() < value.len() { "…" } else { "" };
            format!("{cut:?}{more}")
        };
        let why = why.map(|why| format!(": {why}")).unwrap_or_default();
        Self::new(
            variable,
            format!("{value} is refused{why}; accepted: {}", variable.accepts),
        )
    }

    /// `variable` is wrong as `text` says.
    pub(super) fn new(variable: &Variable, text: String) -> Self {
        Self {
            variable: variable.name,
            text,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.variable, self.text)
    }
}

/// Why a text does not read, when the accepted values do not say it already.
pub(super) type Why = Option<String>;

/// Reads variables out of `lookup`. A method that answers `None` for a variable with a default
/// has noted the problem.
pub(super) struct Reader<L> {
    lookup: L,
    problems: Vec<Problem>,
}

impl<L: Fn(&str) -> Option<OsString>> Reader<L> {
    pub(super) fn new(lookup: L) -> Self {
        Self {
            lookup,
            problems: Vec::new(),
        }
    }

    /// Notes a problem.
    pub(super) fn problem(&mut self, problem: Problem) {
        self.problems.push(problem);
    }

    /// Everything that was wrong.
    pub(super) fn into_problems(self) -> Vec<Problem> {
        self.problems
    }

    /// The variable as it is set, without the space around it; `None` when unset, blank or no
    /// UTF-8 (which is noted).
    pub(super) fn set(&mut self, variable: &'static Variable) -> Option<String> {
        let value = (self.lookup)(variable.name)?;
        match value.into_string() {
            Ok(text) => {
                let text = text.trim();
                (!text.is_empty()).then(|| text.to_owned())
            }
            Err(_) => {
                self.problem(Problem::new(
                    variable,
                    format!("the value is not UTF-8; accepted: {}", variable.accepts),
                ));
                None
            }
        }
    }

    /// The variable read by `parse`, or `None` when it is unset and has no default.
    pub(super) fn text<T>(
        &mut self,
        variable: &'static Variable,
        parse: impl FnOnce(&str) -> Result<T, Why>,
    ) -> Option<T> {
        let known = self.problems.len();
        let value = match (self.set(variable), variable.default) {
            (Some(value), _) => value,
            // What is no UTF-8 is no missing variable.
            (None, _) if self.problems.len() > known => return None,
            (None, DefaultValue::Value(default)) => default.to_owned(),
            (None, DefaultValue::Required) => {
                self.problem(Problem::new(
                    variable,
                    format!("is required and unset; accepted: {}", variable.accepts),
                ));
                return None;
            }
            (None, DefaultValue::Unset | DefaultValue::Found(_)) => return None,
        };
        match parse(&value) {
            Ok(read) => Some(read),
            Err(why) => {
                self.problem(Problem::refused(variable, &value, why.as_deref()));
                None
            }
        }
    }

    /// A whole number within the table's bounds, converted to what holds them.
    pub(super) fn number<T: TryFrom<u64>>(&mut self, variable: &'static Variable) -> Option<T> {
        self.text(variable, |text| {
            let Accepts::Number { min, max } = variable.accepts else {
                return Err(None);
            };
            let digits = text.bytes().all(|byte| byte.is_ascii_digit());
            let number = text
                .parse::<u64>()
                .ok()
                .filter(|n| digits && (min..=max).contains(n));
            number.and_then(|n| T::try_from(n).ok()).ok_or(None)
        })
    }

    /// One of the table's words, given a meaning by `meaning`.
    pub(super) fn word<T>(
        &mut self,
        variable: &'static Variable,
        meaning: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        self.text(variable, |text| {
            let Accepts::Words(words) = variable.accepts else {
                return Err(None);
            };
            if words.contains(&text) {
                meaning(text).ok_or(None)
            } else {
                Err(None)
            }
        })
    }

    /// `true` or `false`.
    pub(super) fn boolean(&mut self, variable: &'static Variable) -> Option<bool> {
        self.word(variable, |text| text.parse().ok())
    }

    /// A secret of visible ASCII characters.
    pub(super) fn secret(&mut self, variable: &'static Variable) -> Option<Secret> {
        self.text(variable, |text| {
            if text.bytes().all(|byte| byte.is_ascii_graphic()) {
                Ok(Secret::new(text))
            } else {
                Err(None)
            }
        })
    }
}
