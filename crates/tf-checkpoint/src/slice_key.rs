//! The keys under which an index stores the slices of a tensor. They are encoded so that the order of their bytes is
//! the order of the slices.

/// A range of an axis: its start, and its length or `None` if it is the complete axis.
pub(crate) type Extent = (i64, Option<i64>);

/// Returns the key of a slice of the tensor `name`. It begins with a zero byte, unlike all names of tensors.
pub(crate) fn slice_key(name: &str, extents: &[Extent]) -> Vec<u8> {
    let mut key = Vec::new();
    unsigned(0, &mut key);
    for byte in name.bytes() {
        match byte {
            0 => key.extend([0, 0xff]),
            0xff => key.extend([0xff, 0]),
            other => key.push(other),
        }
    }
    key.extend([0, 1]);
    unsigned(extents.len() as u64, &mut key);
    for (start, length) in extents {
        signed(*start, &mut key);
        signed(length.unwrap_or(-1), &mut key);
    }
    key
}

/// Appends the number of bytes of a number, and its bytes in big-endian order without leading zeros.
fn unsigned(number: u64, to: &mut Vec<u8>) {
    let zeros = number.leading_zeros() as usize / 8;
    to.push(8 - zeros as u8);
    to.extend_from_slice(&number.to_be_bytes()[zeros..]);
}

/// Appends a signed number as n bytes in big-endian order, whose first n bits are flipped. Here, n is the smallest
/// number for which a sign bit and 7n − 1 further bits are enough.
fn signed(number: i64, to: &mut Vec<u8>) {
    let magnitude = if number < 0 { !number } else { number };
    let bits = 64 - magnitude.leading_zeros() as usize;
    let len = bits / 7 + 1;
    // Room for 70 bits in ten bytes, sign-extended.
    let wide = i128::from(number).to_be_bytes();
    let header = !(u128::MAX >> len) >> (8 * (16 - len));
    let header = header.to_be_bytes();
    to.extend((16 - len..16).map(|at| wide[at] ^ header[at]));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(number: i64) -> Vec<u8> {
        let mut to = Vec::new();
        signed(number, &mut to);
        to
    }

    #[test]
    fn numbers_with_sign_have_the_order_of_their_bytes() {
        assert_eq!([of(0), of(-1), of(63), of(-64)], [[0x80], [0x7f], [0xbf], [0x40]]);
        assert_eq!([of(64), of(-65), of(8191)], [[0xc0, 0x40], [0x3f, 0xbf], [0xdf, 0xff]]);
        assert_eq!(of(8192), [0xe0, 0x20, 0x00]);
        let edges = (0..63).flat_map(|bit| [1i64 << bit, (1 << bit) - 1, -(1 << bit), -(1 << bit) - 1]);
        let mut numbers: Vec<i64> = edges.chain([i64::MIN, i64::MAX]).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert!(numbers.windows(2).all(|pair| of(pair[0]) < of(pair[1])));
    }

    #[test]
    fn a_key_has_name_rank_and_extents() {
        let key = slice_key("a\0b", &[(0, Some(4)), (0, None)]);
        assert_eq!(key, [0, b'a', 0, 0xff, b'b', 0, 1, 1, 2, 0x80, 0x84, 0x80, 0x7f]);
    }
}
