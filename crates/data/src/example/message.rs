//! The messages of an example, as encoded in a record.
//!
//! ```text
//! Example  { 1: Features }              Feature   { 1: BytesList | 2: FloatList | 3: Int64List }
//! Features { 1: Entry, any number }     BytesList { 1: bytes, any number }
//! Entry    { 1: key, 2: Feature }       FloatList, Int64List { 1: number, any number, also side by side }
//!
//! SequenceExample { 1: Features, 2: FeatureLists }
//! FeatureLists    { 1: entry { 1: key, 2: FeatureList }, any number }
//! FeatureList     { 1: Feature, any number }
//! ```
//!
//! A message that occurs in several parts is their concatenation, as in protobuf. If entries have the same key, the
//! last one is used. Unknown fields and fields with an unexpected wire type are skipped.

use super::feature::{Feature, Kind};
use super::wire::{Broken, Value, field, varints};
use std::borrow::Cow;

/// Calls `each` with the key and the feature of each entry, in order.
#[inline]
pub(super) fn entries<'a>(
    record: &'a [u8],
    each: impl FnMut(&'a [u8], Cow<'a, [u8]>),
) -> Result<(), Broken<'a>> {
    entries_of::<1>(record, each)
}

/// Calls `each` with the key and the list of each entry of a sequence example's lists, in order.
pub(super) fn lists<'a>(
    record: &'a [u8],
    each: impl FnMut(&'a [u8], Cow<'a, [u8]>),
) -> Result<(), Broken<'a>> {
    entries_of::<2>(record, each)
}

/// Removes the next feature from the front of a list and returns it; `None` at the end.
pub(super) fn next_feature<'a>(list: &mut &'a [u8]) -> Result<Option<&'a [u8]>, Broken<'a>> {
    while let Some(found) = field(list)? {
        if let (1, Value::Bytes(feature)) = found {
            return Ok(Some(feature));
        }
    }
    Ok(None)
}

#[inline]
fn entries_of<'a, const FIELD: u64>(
    record: &'a [u8],
    mut each: impl FnMut(&'a [u8], Cow<'a, [u8]>),
) -> Result<(), Broken<'a>> {
    let mut rest = record;
    while let Some(found) = field(&mut rest)? {
        let (number, Value::Bytes(mut features)) = found else { continue };
        if number != FIELD {
            continue;
        }
        while let Some(found) = field(&mut features)? {
            let (1, Value::Bytes(entry)) = found else { continue };
            let (key, feature) = key_and_feature(entry)?;
            each(key, feature);
        }
    }
    Ok(())
}

#[inline]
fn key_and_feature(mut entry: &[u8]) -> Result<(&[u8], Cow<'_, [u8]>), Broken<'_>> {
    let mut key: &[u8] = &[];
    let mut feature = None;
    while let Some(found) = field(&mut entry)? {
        match found {
            (1, Value::Bytes(bytes)) => key = bytes,
            (2, Value::Bytes(part)) => feature = Some(joined(feature, part)),
            _ => {}
        }
    }
    Ok((key, feature.unwrap_or_default()))
}

/// Returns the message `before`, if any, with `part` appended.
fn joined<'a>(before: Option<Cow<'a, [u8]>>, part: &'a [u8]) -> Cow<'a, [u8]> {
    match before {
        None => Cow::Borrowed(part),
        Some(mut before) => {
            before.to_mut().extend_from_slice(part);
            before
        }
    }
}

/// The kind of the values of a list, and its encoded bytes.
type List<'a> = (Kind, Cow<'a, [u8]>);

/// Returns the list of values of a feature; `None` if it has none.
#[inline]
pub(super) fn list(mut feature: &[u8]) -> Result<Option<List<'_>>, Broken<'_>> {
    let mut found: Option<List<'_>> = None;
    while let Some(next) = field(&mut feature)? {
        let (kind, part) = match next {
            (1, Value::Bytes(part)) => (Kind::Bytes, part),
            (2, Value::Bytes(part)) => (Kind::Floats, part),
            (3, Value::Bytes(part)) => (Kind::Ints, part),
            _ => continue,
        };
        // If there are several kinds, the last one is used.
        let before = found.filter(|(before, _)| *before == kind).map(|(_, list)| list);
        found = Some((kind, joined(before, part)));
    }
    Ok(found)
}

/// Returns the number of values in a list of the given kind.
pub(super) fn count<'a>(mut list: &'a [u8], kind: Kind) -> Result<usize, Broken<'a>> {
    let mut count = 0;
    while let Some(found) = field(&mut list)? {
        count += match (kind, found) {
            (Kind::Floats, (1, Value::Bytes(packed))) => packed.len() / 4,
            // The last byte of each number has its highest bit clear.
            (Kind::Ints, (1, Value::Bytes(packed))) => packed.iter().filter(|byte| **byte < 0x80).count(),
            (Kind::Bytes, (1, Value::Bytes(_)))
            | (Kind::Floats, (1, Value::Fixed32(_)))
            | (Kind::Ints, (1, Value::Varint(_))) => 1,
            _ => 0,
        };
    }
    Ok(count)
}

/// Decodes the values of a list, and appends them to `out`.
#[inline]
pub(super) fn values<'a>(mut list: &'a [u8], out: &mut Feature) -> Result<(), Broken<'a>> {
    match out {
        Feature::Floats(out) => {
            while let Some(found) = field(&mut list)? {
                match found {
                    (1, Value::Bytes(packed)) => match packed.as_chunks::<4>() {
                        (floats, []) => out.extend(floats.iter().map(|bytes| f32::from_le_bytes(*bytes))),
                        (_, rest) => return Err(Broken { rest, what: "the bytes end within a float" }),
                    },
                    (1, Value::Fixed32(bytes)) => out.push(f32::from_le_bytes(bytes)),
                    _ => {}
                }
            }
        }
        Feature::Ints(out) => {
            while let Some(found) = field(&mut list)? {
                match found {
                    (1, Value::Bytes(packed)) => varints(packed, out)?,
                    (1, Value::Varint(number)) => out.push(number as i64),
                    _ => {}
                }
            }
        }
        Feature::Bytes(out) => {
            while let Some(found) = field(&mut list)? {
                if let (1, Value::Bytes(bytes)) = found {
                    out.push(bytes.to_vec());
                }
            }
        }
    }
    Ok(())
}
