//! The check of a file's footer, before the library reads it.
//!
//! The library builds its tree of columns by recursion, and allocates memory for the stated number of children of each
//! group. Footers that are nested too deeply, or that state more columns than they contain, are therefore rejected
//! here.

use super::thrift::{INT, LIST, SET, STRUCT, Thrift};
use ::parquet::file::reader::ChunkReader;

/// The maximum nesting depth of columns. A list takes two levels.
const MAX_DEPTH: usize = 100;

/// The maximum number of columns and groups of columns.
const MAX: u64 = 1 << 20;

/// The maximum nesting depth of the footer's structures, not counting columns.
const MAX_STRUCTURE_DEPTH: usize = 32;

/// The number of bytes after the footer: its length and the magic bytes.
const TAIL: u64 = 8;

/// Checks that the library can safely read the footer of a file. A file without a footer passes, because the
/// library returns an error for it.
pub(super) fn check(file: &impl ChunkReader) -> Result<(), String> {
    let Some(start) = file.len().checked_sub(TAIL) else { return Ok(()) };
    let Ok(tail) = file.get_bytes(start, TAIL as usize) else { return Ok(()) };
    let Some((len, b"PAR1")) = tail.split_first_chunk::<4>() else { return Ok(()) };
    let len = u64::from(u32::from_le_bytes(*len));
    let Some(start) = start.checked_sub(len) else { return Ok(()) };
    match file.get_bytes(start, len as usize) {
        Ok(description) => check_description(&description),
        Err(_) => Ok(()),
    }
}

/// Returns the value, or the error for a damaged footer if it is `None`.
fn damaged<T>(found: Option<T>) -> Result<T, String> {
    found.ok_or_else(|| "its description is damaged".to_string())
}

fn check_description(bytes: &[u8]) -> Result<(), String> {
    let mut input = Thrift::new(bytes);
    let mut id = 0;
    while let Some(kind) = damaged(input.field(&mut id))? {
        match (id, kind) {
            (2, LIST | SET) => check_columns(&mut input)?,
            (2, _) => return damaged(None),
            (_, kind) => damaged(input.skip(kind, MAX_STRUCTURE_DEPTH))?,
        }
    }
    Ok(())
}

/// Skips the columns, and checks their number and nesting depth. Each column states how many of the columns after it
/// are its children.
fn check_columns(input: &mut Thrift<'_>) -> Result<(), String> {
    let (kind, count) = damaged(input.list())?;
    if count > MAX {
        return Err(format!("it states {count} columns, more than the {MAX} that are read"));
    }
    // The number of children to come in each open group.
    let mut open: Vec<u64> = Vec::new();
    for at in 0..count {
        if kind != STRUCT {
            return damaged(None);
        }
        while open.last() == Some(&0) {
            open.pop();
        }
        if let Some(left) = open.last_mut() {
            *left -= 1;
        }
        let children = damaged(children(input))?;
        if children > count - at - 1 {
            return Err(format!(
                "a group of its columns states {children} more, but {} follow",
                count - at - 1
            ));
        }
        if children > 0 {
            open.push(children);
        }
        if open.len() > MAX_DEPTH {
            return Err(format!("its columns are nested deeper than the {MAX_DEPTH} levels that are read"));
        }
    }
    Ok(())
}

/// Skips the next column, and returns its number of children. Returns `None` if it is damaged.
fn children(input: &mut Thrift<'_>) -> Option<u64> {
    let (mut id, mut children) = (0, 0);
    while let Some(kind) = input.field(&mut id)? {
        match (id, kind) {
            (5, INT) => children = u64::try_from(input.number()?).ok()?,
            (5, _) => return None,
            (_, kind) => input.skip(kind, MAX_STRUCTURE_DEPTH)?,
        }
    }
    Some(children)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a footer with columns that have these numbers of children.
    fn described(children: &[u32]) -> Vec<u8> {
        let mut bytes = vec![0x15, 2, 0x19, 0xfc];
        varint(children.len() as u32, &mut bytes);
        for count in children {
            // A name, and the number of children.
            bytes.extend([0x48, 1, b'x', 0x15]);
            varint(count << 1, &mut bytes);
            bytes.push(0);
        }
        bytes.push(0);
        bytes
    }

    fn varint(mut number: u32, bytes: &mut Vec<u8>) {
        while number >= 0x80 {
            bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        bytes.push(number as u8);
    }

    #[test]
    fn columns_that_are_nested_too_deep_or_too_many_are_refused() {
        let chain = |depth: usize| described(&[vec![1; depth], vec![0]].concat());
        assert_eq!(check_description(&chain(MAX_DEPTH)), Ok(()));
        assert!(check_description(&chain(MAX_DEPTH + 1)).unwrap_err().contains("nested deeper"));
        assert!(check_description(&chain(20_000)).unwrap_err().contains("nested deeper"));
        // Many groups in sequence are not deep: 500 groups of one column each.
        let wide = [vec![500], [1, 0].repeat(500)].concat();
        assert_eq!(check_description(&described(&wide)), Ok(()));
        let error = check_description(&described(&[1, 1 << 20, 0])).unwrap_err();
        assert_eq!(error, "a group of its columns states 1048576 more, but 1 follow");
        let mut many = vec![0x29, 0xfc];
        varint(u32::MAX, &mut many);
        assert!(check_description(&many).unwrap_err().contains("4294967295 columns"));
        for len in 0..chain(3).len() {
            assert!(check_description(&chain(3)[..len]).is_err(), "{len}");
        }
    }
}
