//! [`plain`]: escaping of control characters in text from other processes.

use std::borrow::Cow;

/// Escapes the control characters in text, including line breaks, as in a Rust string. Use it for text from other
/// processes, because a terminal would interpret the control characters.
///
/// ```
/// assert_eq!(distribute_log::plain("no\x1b[2J\n"), r"no\u{1b}[2J\n");
/// ```
pub fn plain(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { plain.extend(c.escape_default()) } else { plain.push(c) }
    }
    Cow::Owned(plain)
}

/// Acts like [`plain`], but keeps line breaks.
pub fn plain_lines(text: &str) -> Cow<'_, str> {
    if !text.contains(|c: char| c.is_control() && c != '\n') {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.split('\n').map(plain).collect::<Vec<_>>().join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    // INV-62
    #[test]
    fn nothing_is_left_that_a_terminal_obeys_and_all_else_stays() {
        for text in ["", "ps 0 → naïve 文", "\"a\\b\""] {
            assert!(matches!(plain(text), Cow::Borrowed(same) if same == text));
        }
        // All of C0, DEL and C1.
        let obeyed: String = (0..0xa0).filter_map(char::from_u32).filter(|c| c.is_control()).collect();
        assert_eq!(obeyed.chars().count(), 65);
        assert!(!plain(&obeyed).contains(char::is_control));
        assert_eq!(plain("a\u{9b}2Jb\r"), r"a\u{9b}2Jb\r");
        assert_eq!(plain_lines("one\ntwo\x1b[2J\n"), "one\ntwo\\u{1b}[2J\n");
    }
}
