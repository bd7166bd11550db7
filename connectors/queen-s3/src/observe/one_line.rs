//! Foreign text on one line of a log or a terminal.

use std::fmt::{self, Write};

/// Shows a value on one line: what would begin another one, move a terminal's cursor or turn the
/// direction of writing is escaped. Queues and partitions may have any name, and whoever chooses
/// one must not write lines of its own into a log.
#[derive(Clone, Copy, Debug)]
pub struct OneLine<T>(pub T);

impl<T: fmt::Display> fmt::Display for OneLine<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping(f), "{}", self.0)
    }
}

struct Escaping<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut plain = 0;
        for (at, c) in text.char_indices().filter(|(_, c)| is_unsafe(*c)) {
            self.0.write_str(&text[plain..at])?;
            write!(self.0, "{}", c.escape_default())?;
            plain = at + c.len_utf8();
        }
        self.0.write_str(&text[plain..])
    }
}

/// Control characters, the other ends of lines and paragraphs, and marks of direction.
fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leaves_the_line_is_escaped_and_every_other_text_stays() {
        let hostile = "a\r\n2026 ERROR b\x1b[2J\u{9b}1m\u{2028}c\u{202e}d\t";
        assert_eq!(
            OneLine(hostile).to_string(),
            r"a\r\n2026 ERROR b\u{1b}[2J\u{9b}1m\u{2028}c\u{202e}d\t"
        );
        let plain = r#"ключ 𝗞 "quoted" \ /"#;
        assert_eq!(OneLine(plain).to_string(), plain);
    }
}
