//! A parser of rows of numbers in text without quotes, in which every delimiter separates fields and every line
//! ending ends a row.
//!
//! This is a fast path for ordinary rows. From the first unexpected row on, the general CSV parser parses the rest of
//! the section.

use super::block::{Block, Numbers, parse};
use super::file::Dialect;

/// Returns whether the text can be parsed without regard to quotes, and the delimiter cannot be part of a number.
pub(super) fn is_plain(text: &[u8], Dialect { delimiter, quoting }: Dialect) -> bool {
    let part_of_numbers = delimiter.is_ascii_alphanumeric() || b"+-.\r\n\" ".contains(&delimiter);
    !(part_of_numbers || (quoting && text.contains(&b'"')))
}

/// Returns the length in bytes of the complete lines at the beginning of a plain text.
pub(super) fn whole(text: &[u8]) -> usize {
    text.iter().rposition(|byte| ends_line(*byte)).map_or(0, |last| last + 1)
}

/// The reason why no more rows were added.
#[derive(Debug, PartialEq)]
pub(super) enum Stop {
    /// There are no more rows.
    End,
    /// A row that this parser cannot handle begins at this byte.
    At(usize),
}

/// Adds the rows of a plain text to a block of numbers, up to the first row that this parser cannot handle. `first` is
/// `true` if the text is the beginning of the file.
pub(super) fn rows(
    text: &[u8],
    delimiter: u8,
    skip_header: bool,
    first: bool,
    block: &mut Block<'_>,
) -> Stop {
    let Some(mut numbers) = block.numbers() else { return Stop::At(0) };
    if first && text.starts_with(b"\xef\xbb\xbf") {
        return Stop::At(0);
    }
    let mut at = next_line(text, 0);
    if skip_header {
        at = next_line(text, at + line_end(text.get(at..).unwrap_or_default()));
    }
    while at < text.len() {
        let (features, labels) = (numbers.features.len(), numbers.labels.len());
        match row(text, at, delimiter, &mut numbers) {
            Some(end) => {
                if *numbers.rows == 0 {
                    // Estimates the number of rows in the rest from the first row.
                    let more = (text.len() - end) / (end - at).max(1) + 1;
                    numbers.features.reserve(more * (numbers.features.len() - features));
                    numbers.labels.reserve(more * (numbers.labels.len() - labels));
                }
                *numbers.rows += 1;
                at = next_line(text, end);
            }
            None => {
                numbers.features.truncate(features);
                numbers.labels.truncate(labels);
                return Stop::At(at);
            }
        }
    }
    Stop::End
}

fn ends_line(byte: u8) -> bool {
    byte == b'\n' || byte == b'\r'
}

fn line_end(text: &[u8]) -> usize {
    text.iter().position(|byte| ends_line(*byte)).unwrap_or(text.len())
}

/// Returns the offset of the next line that is not blank, searching from offset `at`.
#[inline]
fn next_line(text: &[u8], mut at: usize) -> usize {
    while text.get(at).is_some_and(|byte| ends_line(*byte)) {
        at += 1;
    }
    at
}

/// Adds the row that begins at `at`, and returns its end. Returns `None` if a field is invalid or the number of fields
/// is wrong; the caller must then remove the values that have been added.
#[inline]
fn row(text: &[u8], mut at: usize, delimiter: u8, to: &mut Numbers<'_>) -> Option<usize> {
    for column in 0..to.width {
        let end = if to.label == Some(column) {
            let (label, end) = field(text, at, delimiter, integer)?;
            to.labels.push(label);
            end
        } else {
            let (number, end) = field(text, at, delimiter, number)?;
            to.features.push(number);
            end
        };
        let last = column + 1 == to.width;
        match text.get(end) {
            Some(byte) if *byte == delimiter && !last => at = end + 1,
            Some(byte) if ends_line(*byte) && last => return Some(end),
            None if last => return Some(end),
            _ => return None,
        }
    }
    None
}

/// Parses the field that begins at `at`, with `simple` if that suffices. Returns the value and the end of the field;
/// `None` if the field is invalid.
#[inline]
fn field<T: std::str::FromStr>(
    text: &[u8],
    at: usize,
    delimiter: u8,
    simple: impl Fn(&[u8]) -> Option<(T, usize)>,
) -> Option<(T, usize)> {
    let rest = text.get(at..)?;
    let ends = |byte: u8| byte == delimiter || ends_line(byte);
    match simple(rest) {
        Some((value, len)) if rest.get(len).is_none_or(|byte| ends(*byte)) => Some((value, at + len)),
        _ => {
            let len = rest.iter().position(|byte| ends(*byte)).unwrap_or(rest.len());
            Some((parse(rest.get(..len)?)?, at + len))
        }
    }
}

/// The powers of ten that `f32` represents exactly.
const TENS: [f32; 11] = [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10];

/// Parses a number with few digits and no exponent at the start of a text. Returns the number and its length; `None`
/// for any other text. The digits and the power of ten are exact, so their quotient is the correctly rounded number.
#[inline]
fn number(text: &[u8]) -> Option<(f32, usize)> {
    let negative = text.first() == Some(&b'-');
    let start = usize::from(negative);
    let (whole, mut at) = digits(text, start, 0);
    let (mut all, mut places) = (whole, 0);
    let mut count = at - start;
    if text.get(at) == Some(&b'.') {
        let (with_fraction, end) = digits(text, at + 1, whole);
        places = end - at - 1;
        count += places;
        (all, at) = (with_fraction, end);
    }
    let ten = TENS.get(places)?;
    // With fewer than 20 digits no overflow has occurred.
    if count == 0 || count > 19 || all > 1 << 24 {
        return None;
    }
    let value = all as f32 / ten;
    Some((if negative { -value } else { value }, at))
}

/// Parses an integer of at most 18 digits at the start of a text. Returns the integer and its length; `None` for any
/// other text.
#[inline]
fn integer(text: &[u8]) -> Option<(i64, usize)> {
    let negative = text.first() == Some(&b'-');
    let start = usize::from(negative);
    let (number, end) = digits(text, start, 0);
    let count = end - start;
    let value = if count == 0 || count > 18 { None } else { i64::try_from(number).ok() }?;
    Some((if negative { -value } else { value }, end))
}

/// Appends the digits of the text that begin at `at` to `number`. Returns the number and the end of the digits. More
/// than 19 digits overflow.
#[inline]
fn digits(text: &[u8], mut at: usize, mut number: u64) -> (u64, usize) {
    while let Some(byte) = text.get(at) {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            break;
        }
        number = number.wrapping_mul(10).wrapping_add(u64::from(digit));
        at += 1;
    }
    (number, at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csv::block::Layout;
    use crate::csv::missing::Missing;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_are_those_of_std(text in "-?[0-9]{0,9}(\\.[0-9]{0,12})?") {
            if let Some((value, len)) = number(text.as_bytes()) {
                prop_assert_eq!(len, text.len());
                prop_assert_eq!(value.to_bits(), text.parse::<f32>().unwrap().to_bits());
            }
            let mut padded = text.clone().into_bytes();
            padded.push(b',');
            let found = field(&padded, 0, b',', number).map(|(value, _)| value.to_bits());
            prop_assert_eq!(found, text.parse::<f32>().ok().map(f32::to_bits));
        }

        #[test]
        fn integers_are_those_of_std(text in "[-+]?[0-9]{0,21}") {
            let found = field(text.as_bytes(), 0, b',', integer).map(|(value, _)| value);
            prop_assert_eq!(found, text.parse::<i64>().ok());
        }

        /// Checks that the fast path and the general parser give the same result for any text of digits, `-`, `.`,
        /// commas, spaces and line endings.
        #[test]
        fn it_reads_the_same_as_the_parser_of_all_csv(text in "[-0-9., \r\n]{0,60}") {
            let layout = Layout::Labelled { label: 1 };
            let missing = Missing::default();
            let mut block = Block::new(&layout, &missing, 3);
            let stop = rows(text.as_bytes(), b',', false, true, &mut block);
            let mut expected = Block::new(&layout, &missing, 3);
            let mut reader = crate::csv::file::reader(text.as_bytes(), Dialect { delimiter: b',', quoting: true }, false);
            let mut record = ::csv::ByteRecord::new();
            let mut all = true;
            while reader.read_byte_record(&mut record).unwrap() {
                if record.len() != 3 || expected.push(&record).is_err() {
                    all = false;
                    break;
                }
            }
            prop_assert_eq!(stop == Stop::End, all);
            prop_assert_eq!(format!("{:?}", block.finish()), format!("{:?}", expected.finish()));
        }
    }

    #[test]
    fn text_with_quotes_or_odd_delimiters_is_not_plain() {
        let is_plain = |text, delimiter| is_plain(text, Dialect { delimiter, quoting: true });
        assert!(is_plain(b"1,2\n", b',') && is_plain(b"1\t2", b'\t'));
        assert!(!is_plain(b"\"1\",2\n", b',') && !is_plain(b"1.2", b'.') && !is_plain(b"1 2", b' '));
        assert!(super::is_plain(b"\"1\",2\n", Dialect { delimiter: b',', quoting: false }));
        assert_eq!(whole(b"1,2\n3"), 4);
        assert_eq!(whole(b"1,2\r3"), 4);
        assert_eq!(whole(b"1,2"), 0);
    }
}
