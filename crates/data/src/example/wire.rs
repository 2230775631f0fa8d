//! Protobuf's wire format: a sequence of fields, each with a number, a wire type and a value.

/// The error for bytes that are not in the wire format.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Broken<'a> {
    /// The rest of the input, beginning at the error.
    pub(super) rest: &'a [u8],
    pub(super) what: &'static str,
}

impl Broken<'_> {
    /// Returns a message with the position of the error in `record` and the reason.
    pub(super) fn describe(self, record: &[u8]) -> String {
        let place = self.rest.as_ptr().addr().checked_sub(record.as_ptr().addr());
        match place.filter(|place| *place <= record.len()) {
            Some(place) => format!("broken at byte {place} of its {}: {}", record.len(), self.what),
            // A value in several parts was joined in another buffer.
            None => format!("broken in a value of several parts: {}", self.what),
        }
    }
}

/// The value of a field, by wire type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value<'a> {
    /// A number with a variable number of bytes.
    Varint(u64),
    /// A value of four bytes.
    Fixed32([u8; 4]),
    /// A string, a message, or several numbers.
    Bytes(&'a [u8]),
    /// A value of a wire type that no message here uses: eight bytes, or a group.
    Other,
}

/// The maximum nesting depth of groups, as in protobuf for C++.
const DEPTH: usize = 100;

/// Removes the next field from the front of `rest`, and returns its number and value; `None` at the end.
#[inline]
pub(super) fn field<'a>(rest: &mut &'a [u8]) -> Result<Option<(u64, Value<'a>)>, Broken<'a>> {
    // Nearly all fields are bytes with a number below 16.
    match rest.split_first() {
        Some((key, after)) if key & 0x87 == 2 && *key > 7 => {
            *rest = after;
            Ok(Some((u64::from(key >> 3), Value::Bytes(bytes(rest)?))))
        }
        Some(_) => other_field(rest).map(Some),
        None => Ok(None),
    }
}

fn other_field<'a>(rest: &mut &'a [u8]) -> Result<(u64, Value<'a>), Broken<'a>> {
    let (number, way) = key(rest)?;
    let value = match way {
        0 => Value::Varint(varint(rest)?),
        2 => Value::Bytes(bytes(rest)?),
        5 => Value::Fixed32(fixed(rest)?),
        1 => fixed::<8>(rest).map(|_| Value::Other)?,
        3 => skip_group(rest, number, DEPTH).map(|()| Value::Other)?,
        4 => return Err(Broken { rest, what: "a group ends without a beginning" }),
        _ => return Err(Broken { rest, what: "an unknown wire type" }),
    };
    Ok((number, value))
}

/// Removes the key of a field from the front of `rest`, and returns the field's number and wire type.
#[inline]
fn key<'a>(rest: &mut &'a [u8]) -> Result<(u64, u64), Broken<'a>> {
    let start = *rest;
    let key = varint(rest)?;
    match key >> 3 {
        0 => Err(Broken { rest: start, what: "a field's number is 0" }),
        number if number >= 1 << 29 => Err(Broken { rest: start, what: "a field's number is beyond 2^29" }),
        number => Ok((number, key & 7)),
    }
}

/// Removes a varint from the front of `rest` and returns it. It has 1 to 10 bytes with 7 bits each.
#[inline]
pub(super) fn varint<'a>(rest: &mut &'a [u8]) -> Result<u64, Broken<'a>> {
    match **rest {
        [first, ref after @ ..] if first < 0x80 => {
            *rest = after;
            Ok(u64::from(first))
        }
        [first, second, ref after @ ..] if second < 0x80 => {
            *rest = after;
            Ok(u64::from(first & 0x7f) | u64::from(second) << 7)
        }
        _ => long_varint(rest),
    }
}

fn long_varint<'a>(rest: &mut &'a [u8]) -> Result<u64, Broken<'a>> {
    let start = *rest;
    let mut number = 0;
    for (at, byte) in start.iter().take(10).enumerate() {
        // The tenth byte has space for one bit.
        if at == 9 && *byte > 1 {
            break;
        }
        number |= u64::from(byte & 0x7f) << (7 * at);
        if *byte < 0x80 {
            *rest = start.get(at + 1..).unwrap_or_default();
            return Ok(number);
        }
    }
    let what = if start.len() < 10 { "the bytes end within a number" } else { "a number has over 64 bits" };
    Err(Broken { rest: start, what })
}

/// Removes a length and that number of bytes from the front of `rest`, and returns the bytes.
#[inline]
fn bytes<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], Broken<'a>> {
    let start = *rest;
    let len = varint(rest)?;
    match usize::try_from(len).ok().and_then(|len| rest.split_at_checked(len)) {
        Some((bytes, after)) => {
            *rest = after;
            Ok(bytes)
        }
        None => Err(Broken { rest: start, what: "a length is beyond the end" }),
    }
}

#[inline]
fn fixed<'a, const N: usize>(rest: &mut &'a [u8]) -> Result<[u8; N], Broken<'a>> {
    match rest.split_first_chunk::<N>() {
        Some((bytes, after)) => {
            *rest = after;
            Ok(*bytes)
        }
        None => Err(Broken { rest, what: "the bytes end within a number" }),
    }
}

/// Skips the rest of a group, including its end. `group` is the number of its field; `depth` is the number of
/// nested groups that are still allowed.
fn skip_group<'a>(rest: &mut &'a [u8], group: u64, depth: usize) -> Result<(), Broken<'a>> {
    if depth == 0 {
        return Err(Broken { rest, what: "groups are nested more than 100 deep" });
    }
    loop {
        if rest.is_empty() {
            return Err(Broken { rest, what: "the bytes end within a group" });
        }
        let start = *rest;
        match key(rest)? {
            (number, 4) if number == group => return Ok(()),
            (_, 4) => return Err(Broken { rest: start, what: "the end belongs to another group" }),
            (number, 3) => skip_group(rest, number, depth - 1)?,
            _ => {
                *rest = start;
                field(rest)?;
            }
        }
    }
}

/// Decodes packed varints, and appends them to `out`.
pub(super) fn varints<'a>(mut rest: &'a [u8], out: &mut Vec<i64>) -> Result<(), Broken<'a>> {
    const ENDS: u64 = 0x8080_8080_8080_8080;
    while let Some(eight) = rest.first_chunk::<8>() {
        let word = u64::from_le_bytes(*eight);
        let ends = !word & ENDS;
        if ends == ENDS {
            out.extend(eight.map(i64::from));
            rest = rest.get(8..).unwrap_or_default();
        } else if ends != 0 {
            // Keeps the bits up to the first byte that ends a number, then joins the 7 bits of each byte.
            let word = word & (ends ^ (ends - 1)) & !ENDS;
            let pairs = (word & 0x007f_007f_007f_007f) | ((word & 0x7f00_7f00_7f00_7f00) >> 1);
            let fours = (pairs & 0x0000_3fff_0000_3fff) | ((pairs & 0x3fff_0000_3fff_0000) >> 2);
            out.push(((fours & 0x0fff_ffff) | ((fours & 0x0fff_ffff_0000_0000) >> 4)) as i64);
            rest = rest.get(ends.trailing_zeros() as usize / 8 + 1..).unwrap_or_default();
        } else {
            out.push(long_varint(&mut rest)? as i64);
        }
    }
    while !rest.is_empty() {
        out.push(varint(&mut rest)? as i64);
    }
    Ok(())
}

pub(super) fn varint_len(number: u64) -> usize {
    (64 - (number | 1).leading_zeros() as usize).div_ceil(7)
}

pub(super) fn put_varint(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Appends the key and the length of a field of bytes.
pub(super) fn put_bytes_key(field: u64, len: usize, out: &mut Vec<u8>) {
    put_varint(field << 3 | 2, out);
    put_varint(len as u64, out);
}

/// Returns the length in bytes of a field with `len` bytes of contents, including the field's key and its length. The
/// field's number must be less than 16.
pub(super) fn bytes_field_len(len: usize) -> usize {
    1 + varint_len(len as u64) + len
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packed(numbers: &[u64]) -> Vec<u8> {
        let mut out = Vec::new();
        numbers.iter().for_each(|number| put_varint(*number, &mut out));
        out
    }

    fn what(mut bytes: &[u8]) -> &'static str {
        field(&mut bytes).unwrap_err().what
    }

    #[test]
    fn every_way_of_writing_is_read_and_groups_are_passed_over() {
        let bytes = [
            &[0x08, 0x96, 0x01][..],                           // 1: 150
            &[0x15, 1, 2, 3, 4],                               // 2: four bytes
            &[0x19, 0, 0, 0, 0, 0, 0, 0, 0],                   // 3: eight bytes
            &[0x22, 2, b'h', b'i'],                            // 4: bytes
            &[0x2b, 0x08, 1, 0x33, 0x22, 1, b'x', 0x34, 0x2c], // 5: a group with a group in it
        ]
        .concat();
        let mut rest = &bytes[..];
        let mut fields = Vec::new();
        while let Some(field) = field(&mut rest).unwrap() {
            fields.push(field);
        }
        let bytes = Value::Bytes(&b"hi"[..]);
        let wanted = [Value::Varint(150), Value::Fixed32([1, 2, 3, 4]), Value::Other, bytes, Value::Other];
        assert_eq!(fields, (1..).zip(wanted).collect::<Vec<_>>());
    }

    #[test]
    fn broken_bytes_are_named() {
        assert_eq!(what(&[0x08]), "the bytes end within a number");
        assert_eq!(what(&[0x08, 0x80]), "the bytes end within a number");
        assert_eq!(what(&[0x0d, 1, 2]), "the bytes end within a number");
        assert_eq!(what(&[0x02]), "a field's number is 0");
        assert_eq!(what(&[0x80, 0x80, 0x80, 0x80, 0x10]), "a field's number is beyond 2^29");
        assert_eq!(what(&[0x0a, 3, 1, 2]), "a length is beyond the end");
        assert_eq!(what(&[&[0x0a][..], &packed(&[u64::MAX])].concat()), "a length is beyond the end");
        assert_eq!(what(&[0x0c]), "a group ends without a beginning");
        assert_eq!(what(&[0x0e]), "an unknown wire type");
        assert_eq!(what(&[0x0b, 0x14]), "the end belongs to another group");
        assert_eq!(what(&[0x0b, 0x08, 1]), "the bytes end within a group");
        assert_eq!(what(&[0x0b; 200]), "groups are nested more than 100 deep");
        let long = [&[0x08][..], &[0xff; 9], &[2]].concat();
        assert_eq!(what(&long), "a number has over 64 bits");
    }

    #[test]
    fn a_place_is_counted_from_the_record() {
        let record = [0x0a, 2, 0x08, 0x80];
        let mut rest = &record[..];
        let Ok(Some((1, Value::Bytes(mut inner)))) = field(&mut rest) else { panic!() };
        let broken = field(&mut inner).unwrap_err();
        assert_eq!(broken.describe(&record), "broken at byte 3 of its 4: the bytes end within a number");
        let elsewhere = Broken { rest: &[], ..broken };
        assert!(!elsewhere.describe(&record).contains("byte 3"));
    }

    proptest! {
        #[test]
        fn numbers_round_trip(numbers in prop::collection::vec(any::<(u64, u32)>(), 0..40)) {
            let numbers: Vec<u64> = numbers.into_iter().map(|(n, bits)| n >> (bits % 64)).collect();
            let bytes = packed(&numbers);
            prop_assert_eq!(bytes.len(), numbers.iter().map(|n| varint_len(*n)).sum::<usize>());
            let mut out = Vec::new();
            varints(&bytes, &mut out).unwrap();
            prop_assert_eq!(out, numbers.iter().map(|n| *n as i64).collect::<Vec<_>>());
            let mut rest = &bytes[..];
            for number in numbers {
                prop_assert_eq!(varint(&mut rest), Ok(number));
            }
        }

        #[test]
        fn both_ways_of_reading_numbers_agree(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let mut fast = Vec::new();
            let fast_result = varints(&bytes, &mut fast);
            let mut slow = Vec::new();
            let mut rest = &bytes[..];
            let slow_result = loop {
                if rest.is_empty() {
                    break Ok(());
                }
                match varint(&mut rest) {
                    Ok(number) => slow.push(number as i64),
                    Err(error) => break Err(error),
                }
            };
            prop_assert_eq!(fast_result, slow_result);
            prop_assert_eq!(fast, slow);
        }
    }
}
