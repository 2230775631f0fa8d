//! The expansion of braces in patterns: `{a,b}` and `{000..099}`.

/// Returns the expansions of the braces in a pattern, in order. A pattern without braces is its only expansion. Braces
/// that contain neither a comma nor a range of numbers are ordinary text.
///
/// # Errors
///
/// Returns a message if there are more than [`MAX`] expansions.
pub(super) fn expand(pattern: &str) -> Result<Vec<String>, String> {
    let mut done = Vec::new();
    // The text before the first brace that is not expanded yet, and the rest.
    let mut open = vec![(String::new(), pattern.to_string())];
    while let Some((before, rest)) = open.pop() {
        let group = rest.find('{').and_then(|start| Some((start, closing(rest.get(start..)?)?)));
        let Some((start, len)) = group else {
            done.push(before + &rest);
            continue;
        };
        let text = |range: std::ops::Range<usize>| rest.get(range).unwrap_or_default();
        let (ahead, after) = (format!("{before}{}", text(0..start)), text(start + len..rest.len()));
        match choices(text(start + 1..start + len - 1))? {
            // The brace is text, and braces may follow in it.
            None => open.push((ahead + "{", text(start + 1..rest.len()).to_string())),
            Some(choices) => {
                if done.len() + open.len() + choices.len() > MAX {
                    return Err(too_many());
                }
                open.extend(choices.into_iter().rev().map(|choice| (ahead.clone(), choice + after)));
            }
        }
    }
    Ok(done)
}

/// The maximum number of expansions of one pattern.
const MAX: usize = 1_000_000;

fn too_many() -> String {
    format!("its braces expand to more than {MAX} patterns")
}

/// Returns the length in bytes of the braces at the beginning of a text, including their contents. Returns `None`
/// if they are not closed.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return Some(at + 1);
        }
    }
    None
}

/// Returns the alternatives within braces; `None` if the braces are ordinary text.
fn choices(inner: &str) -> Result<Option<Vec<String>>, String> {
    if let Some((first, last)) = inner.split_once("..")
        && let (Some(from), Some(to)) = (number(first), number(last))
    {
        // A leading zero pads all numbers to the same number of digits.
        let padded = [first, last].iter().any(|text| text.len() > 1 && text.starts_with('0'));
        let digits = if padded { first.len().max(last.len()) } else { 0 };
        if from.abs_diff(to) >= MAX as u64 {
            return Err(too_many());
        }
        let shown = |number: u64| format!("{number:0digits$}");
        return Ok(Some(if from <= to {
            (from..=to).map(shown).collect()
        } else {
            (to..=from).rev().map(shown).collect()
        }));
    }
    let (mut all, mut depth) = (vec![String::new()], 0usize);
    for c in inner.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                all.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(last) = all.last_mut() {
            last.push(c);
        }
    }
    Ok((all.len() > 1).then_some(all))
}

/// Parses a number of a range; `None` if it is not a number, or does not fit into a `u64`.
fn number(text: &str) -> Option<u64> {
    let is_number = text.len() <= 20 && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_are_choices_and_ranges() {
        for (pattern, expected) in [
            ("a", &["a"][..]),
            ("a-{0..2}.tar", &["a-0.tar", "a-1.tar", "a-2.tar"]),
            ("{008..011}", &["008", "009", "010", "011"]),
            ("{2..0}", &["2", "1", "0"]),
            ("{a,b}/{1..2}", &["a/1", "a/2", "b/1", "b/2"]),
            ("{a,b{1,2}}c", &["ac", "b1c", "b2c"]),
            ("{a}{}{x..y}{", &["{a}{}{x..y}{"]),
            ("{{0..1}}", &["{0}", "{1}"]),
            ("{a,}b", &["ab", "b"]),
        ] {
            assert_eq!(expand(pattern).unwrap(), expected, "{pattern}");
        }
        assert_eq!(expand("train-{000..099}.tar").unwrap().len(), 100);
        assert!(expand("{0..9999999}").unwrap_err().contains("more than 1000000"));
        assert!(expand(&"{0..99}".repeat(9)).is_err());
        // More digits than a format width may have.
        for text in ["{0..99999999999999999999}", &format!("{{{}1..2}}", "0".repeat(70_000))] {
            assert!(expand(text).unwrap() == [text]);
        }
    }
}
