//! One line that tells how far things are.

use std::io::{IsTerminal, Write, stdout};
use std::time::{Duration, Instant};

/// How often a line is printed where lines cannot be rewritten.
const PLAIN_INTERVAL: Duration = Duration::from_secs(3);

/// A progress line: rewritten in place on a terminal, now and then a new one elsewhere.
#[derive(Debug)]
pub struct Progress {
    terminal: bool,
    printed: Option<Instant>,
}

impl Progress {
    /// For standard output as it is.
    pub fn new() -> Self {
        Self {
            terminal: stdout().is_terminal(),
            printed: None,
        }
    }

    /// Shows `text`. Output that nobody takes (a closed pipe) is no reason to stop.
    pub fn show(&mut self, text: &str) {
        if self.terminal {
            let _ = write!(stdout(), "\r\x1b[2K  {text}");
            let _ = stdout().flush();
        } else if self
            .printed
            .is_none_or(|printed| printed.elapsed() >= PLAIN_INTERVAL)
        {
            println!("  {text}");
            self.printed = Some(Instant::now());
        }
    }

    /// Shows the last state and ends the line.
    pub fn finish(mut self, text: &str) {
        self.printed = None;
        self.show(text);
        if self.terminal {
            println!();
        }
    }
}

/// `1234567` as `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::grouped;

    #[test]
    fn digits_are_grouped_by_three() {
        assert_eq!(grouped(7), "7");
        assert_eq!(grouped(1_000), "1,000");
        assert_eq!(grouped(100_000), "100,000");
    }
}
