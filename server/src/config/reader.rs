//! Variables as text, number, flag: what does not parse is gathered.

use super::variables::{VARIABLES, Variable};

/// Reads variables by their row in the table, and gathers what is wrong.
pub(crate) struct Reader<'a> {
    pub(crate) lookup: &'a dyn Fn(&str) -> Option<String>,
    pub(crate) problems: Vec<String>,
}

impl Reader<'_> {
    fn row(name: &str) -> &'static Variable {
        VARIABLES
            .iter()
            .find(|row| row.name == name)
            .unwrap_or_else(|| unreachable!("{name} is not in the table of variables"))
    }

    pub(crate) fn value(&self, name: &str) -> Option<String> {
        let row = Self::row(name);
        (self.lookup)(row.name).filter(|value| !value.trim().is_empty())
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.value(name)
            .unwrap_or_else(|| Self::row(name).default.into())
    }

    pub(crate) fn refuse(&mut self, name: &str, value: &str) {
        let row = Self::row(name);
        let shown = if row.secret {
            String::new()
        } else {
            format!(" {value:?}")
        };
        self.problems.push(format!(
            "{name}:{shown} does not parse; accepted: {}",
            row.accepts
        ));
    }

    pub(crate) fn number(&mut self, name: &str, low: u64, high: u64) -> u64 {
        let text = self.text(name);
        match text.trim().parse::<u64>() {
            Ok(number) if (low..=high).contains(&number) => number,
            _ => {
                self.refuse(name, &text);
                low
            }
        }
    }

    pub(crate) fn flag(&mut self, name: &str) -> bool {
        let text = self.text(name);
        match text.trim() {
            "true" => true,
            "false" => false,
            _ => {
                self.refuse(name, &text);
                false
            }
        }
    }

    pub(crate) fn parsed<T: std::str::FromStr>(&mut self, name: &str, otherwise: T) -> T {
        let text = self.text(name);
        match text.trim().parse() {
            Ok(value) => value,
            Err(_) => {
                self.refuse(name, &text);
                otherwise
            }
        }
    }
}
