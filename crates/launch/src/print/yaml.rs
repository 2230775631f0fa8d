//! [`Yaml`]: a document that all YAML readers parse in the same way.

use std::fmt::Write as _;

/// A value of a document.
pub(super) enum Yaml {
    /// A map with its keys in the given order. The keys are plain words.
    Map(Vec<(&'static str, Yaml)>),
    /// A list with each item on a separate line.
    List(Vec<Yaml>),
    /// A list of texts on one line.
    Words(Vec<String>),
    /// A text. It is quoted unless every reader parses it as text without quotes.
    Text(String),
    /// A number.
    Number(u64),
    /// A word that is written unchanged: `true`, or a text with a comment.
    Plain(&'static str),
}

impl Yaml {
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// Returns the text of the document.
    pub fn document(&self) -> String {
        let mut out = String::new();
        self.write(&mut out, 0);
        out
    }

    /// Writes the value after its key or dash. If it takes separate lines, they are indented by `indent` spaces.
    fn write(&self, out: &mut String, indent: usize) {
        match self {
            Self::Map(entries) if entries.is_empty() => *out += "{}\n",
            Self::List(items) if items.is_empty() => *out += "[]\n",
            Self::Map(entries) => {
                for (key, value) in entries {
                    begin_line(out, indent);
                    *out += key;
                    out.push(':');
                    value.write_below(out, indent + 2);
                }
            }
            Self::List(items) => {
                for item in items {
                    begin_line(out, indent);
                    *out += "- ";
                    item.write(out, indent + 2);
                }
            }
            Self::Words(words) => {
                let words: Vec<_> = words.iter().map(|word| quoted(word)).collect();
                let _ = writeln!(out, "[{}]", words.join(", "));
            }
            Self::Text(text) => {
                let text = if is_plain(text) { text.clone() } else { quoted(text) };
                let _ = writeln!(out, "{text}");
            }
            Self::Number(number) => {
                let _ = writeln!(out, "{number}");
            }
            Self::Plain(text) => {
                let _ = writeln!(out, "{text}");
            }
        }
    }

    /// Writes the value of a key.
    fn write_below(&self, out: &mut String, indent: usize) {
        let has_lines = match self {
            Self::Map(entries) => !entries.is_empty(),
            Self::List(items) => !items.is_empty(),
            _ => false,
        };
        out.push(if has_lines { '\n' } else { ' ' });
        self.write(out, indent);
    }
}

/// Begins a line of a map or a list with its indentation. The first line of a list's item follows the item's dash.
fn begin_line(out: &mut String, indent: usize) {
    if !out.ends_with("- ") {
        out.extend(std::iter::repeat_n(' ', indent));
    }
}

/// Returns whether all YAML readers parse `text` as text even without quotes. Some readers parse words such as `on` and
/// numbers such as `1e3` as something else.
fn is_plain(text: &str) -> bool {
    const OTHERS: [&str; 11] = ["y", "n", "yes", "no", "on", "off", "true", "false", "null", "inf", "nan"];
    let is_inner = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && text.chars().all(is_inner)
        && !OTHERS.contains(&text.to_ascii_lowercase().as_str())
}

/// Quotes a text. Characters that a reader would change or refuse are escaped.
fn quoted(text: &str) -> String {
    // JSON stays legible in single quotes, in which nothing is escaped.
    if text.contains('"') && text.chars().all(|c| matches!(c, ' '..='~') && c != '\'') {
        return format!("'{text}'");
    }
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out += "\\n",
            '\t' => out += "\\t",
            // Control characters, line ends, the byte order mark and characters that are none.
            '\0'..='\u{1f}'
            | '\u{7f}'..='\u{9f}'
            | '\u{2028}'
            | '\u{2029}'
            | '\u{feff}'
            | '\u{fffe}'
            | '\u{ffff}' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_has_lines_for_maps_and_lists() {
        let port = Yaml::Map(vec![("name", Yaml::text("tasks")), ("containerPort", Yaml::Number(2222))]);
        let nested = Yaml::Map(vec![
            ("kind", Yaml::text("Job")),
            ("spec", Yaml::Map(vec![("ports", Yaml::List(vec![port, Yaml::text("a")]))])),
            ("command", Yaml::Words(vec!["a b".into(), "on".into()])),
            ("flag", Yaml::Plain("true")),
        ]);
        let text = "kind: Job
spec:
  ports:
    - name: tasks
      containerPort: 2222
    - a
command: [\"a b\", \"on\"]
flag: true
";
        assert_eq!(nested.document(), text);
    }

    #[test]
    fn lists_in_lists_and_empty_values_stay_what_they_are() {
        let list = |items: &[&str]| Yaml::List(items.iter().map(|item| Yaml::text(*item)).collect());
        let none = || Yaml::Map(Vec::new());
        let nested = Yaml::Map(vec![
            ("rows", Yaml::List(vec![list(&["a", "b"]), list(&[]), none(), list(&["c"])])),
            ("none", list(&[])),
            ("nothing", none()),
        ]);
        let text = "rows:
  - - a
    - b
  - []
  - {}
  - - c
none: []
nothing: {}
";
        assert_eq!(nested.document(), text);
    }

    #[test]
    fn what_may_be_read_as_something_else_is_quoted() {
        for text in [
            "true", "On", "NULL", "1e3", "0x1f", "1_000", "12:30", "~", "", "-", "a: b", "a #b", "y", "@a",
            "!a",
        ] {
            let written = Yaml::text(text).document();
            assert!(written.starts_with('"') && written.ends_with("\"\n"), "{written}");
        }
        assert_eq!(Yaml::text("me/train").document(), "me/train\n");
        assert_eq!(quoted(r#"{"a": "\n"}"#), r#"'{"a": "\n"}'"#);
        assert_eq!(quoted(r#"{"a": "it's"}"#), r#""{\"a\": \"it's\"}""#);
        assert_eq!(quoted("a\"\\\n\u{7f}\u{85}\u{2028}é😀"), "\"a\\\"\\\\\\n\\u007f\\u0085\\u2028é😀\"");
    }
}
