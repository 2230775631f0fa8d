//! The largest numbers of a vector, as SparseLoCo sends them.
//!
//! Of each chunk of 4,096 numbers, the largest 64 are sent: two magnitudes as `f32`, the positions as 16 bits in
//! ascending order, and 2 bits for each number, its sign and which of the magnitudes it has. The larger magnitude is
//! the mean of the numbers above the mean of all 64, and the other is the mean of the rest. From a last chunk of n <
//! 4,096 numbers, the largest n / 64, rounded up, are sent.
//!
//! If a number of a chunk is not finite, the numbers that the chunk sends are received as NaN. They include that
//! number.

use super::largest::Largest;
use super::{CHUNK, finite};
use crate::{Error, Result};

/// The ratio of the elements of a chunk to those that are sent.
pub const ONE_OF: usize = 64;

/// The number of elements that are sent for a complete chunk.
const MOST: usize = CHUNK / ONE_OF;

/// The number of bytes of the two magnitudes.
const MAGNITUDES: usize = 8;

/// Returns the number of bytes of the packet of `len` numbers.
pub fn packet_len(len: usize) -> usize {
    let rest = len % CHUNK;
    len / CHUNK * chunk_len(CHUNK) + if rest == 0 { 0 } else { chunk_len(rest) }
}

/// Returns the number of bytes of the packet of one chunk.
pub(super) fn chunk_len(len: usize) -> usize {
    let count = len.div_ceil(ONE_OF);
    MAGNITUDES + 2 * count + count.div_ceil(4)
}

/// Encodes numbers, and replaces them by the residual.
///
/// # Panics
/// Panics if `packet` does not have the [length](packet_len) of the packet.
pub fn encode(numbers: &mut [f32], packet: &mut [u8]) {
    assert_eq!(packet.len(), packet_len(numbers.len()), "the packets of all chunks");
    let mut largest = Largest::default();
    for (numbers, packet) in numbers.chunks_mut(CHUNK).zip(packet.chunks_mut(chunk_len(CHUNK))) {
        encode_chunk(numbers, packet, &mut largest);
    }
}

fn encode_chunk(numbers: &mut [f32], packet: &mut [u8], largest: &mut Largest) {
    let count = numbers.len().div_ceil(ONE_OF);
    let mut at = [0u16; MOST];
    let at = &mut at[..count];
    largest.positions(numbers, at);
    let magnitudes = magnitudes(at.iter().map(|at| numbers[usize::from(*at)].abs()));
    let (head, rest) = packet.split_at_mut(MAGNITUDES);
    let (positions, bits) = rest.split_at_mut(2 * count);
    for (place, magnitude) in head.chunks_exact_mut(4).zip(magnitudes) {
        place.copy_from_slice(&magnitude.to_le_bytes());
    }
    bits.fill(0);
    let middle = (magnitudes[0] + magnitudes[1]) / 2.;
    for (number, (at, place)) in at.iter().zip(positions.chunks_exact_mut(2)).enumerate() {
        place.copy_from_slice(&at.to_le_bytes());
        let x = &mut numbers[usize::from(*at)];
        let code = u8::from(x.is_sign_negative()) << 1 | u8::from(x.abs() > middle);
        bits[number / 4] |= code << (2 * (number % 4));
        *x = finite(*x - value(code, magnitudes));
    }
    if magnitudes[1].is_nan() {
        numbers.iter_mut().for_each(|x| *x = finite(*x));
    }
}

/// Returns the smaller and the larger magnitude in which numbers are sent, or NaN if any number is not finite.
fn magnitudes(all: impl Iterator<Item = f32> + Clone) -> [f32; 2] {
    let mean = |(sum, count): (f64, u32)| if count == 0 { 0. } else { sum / f64::from(count) };
    let sum = |(sum, count): (f64, u32), x: f32| (sum + f64::from(x), count + 1);
    let middle = mean(all.clone().fold((0., 0), sum));
    if !middle.is_finite() {
        return [f32::NAN; 2];
    }
    let low = mean(all.clone().filter(|x| f64::from(*x) <= middle).fold((0., 0), sum));
    let high = mean(all.filter(|x| f64::from(*x) > middle).fold((0., 0), sum));
    [low as f32, high.max(low) as f32]
}

/// Decodes a code of 2 bits: the lower bit selects the magnitude, and the other bit is the sign.
fn value(code: u8, magnitudes: [f32; 2]) -> f32 {
    let magnitude = magnitudes[usize::from(code & 1)];
    if code & 2 == 0 { magnitude } else { -magnitude }
}

/// Decodes a packet. Numbers that are not in the packet become 0.
///
/// # Errors
/// - [`Error::Bytes`]: a position is outside its chunk, or positions do not ascend.
///
/// # Panics
/// Panics if `packet` does not have the [length](packet_len) of the packet of the numbers.
pub fn decode(packet: &[u8], numbers: &mut [f32]) -> Result<()> {
    assert_eq!(packet.len(), packet_len(numbers.len()), "the packets of all chunks");
    numbers.fill(0.);
    for (chunk, (numbers, packet)) in
        numbers.chunks_mut(CHUNK).zip(packet.chunks(chunk_len(CHUNK))).enumerate()
    {
        decode_chunk(packet, chunk, numbers.len(), |at, x| numbers[at] = x)?;
    }
    Ok(())
}

/// Calls `then` with the position and the value of each number in the packet of chunk number `chunk`, which has `len`
/// numbers.
///
/// # Errors
/// Returns the errors of [`decode`].
pub(super) fn decode_chunk(
    packet: &[u8],
    chunk: usize,
    len: usize,
    mut then: impl FnMut(usize, f32),
) -> Result<()> {
    let wrong = |what| Error::Bytes {
        operation: "decode a compressed gradient",
        offset: chunk * chunk_len(CHUNK) + MAGNITUDES,
        what,
    };
    let count = len.div_ceil(ONE_OF);
    let (head, rest) = packet.split_at(MAGNITUDES);
    let (positions, bits) = rest.split_at(2 * count);
    let mut magnitudes = [0.; 2];
    for (magnitude, bytes) in magnitudes.iter_mut().zip(head.chunks_exact(4)) {
        let mut bits = [0; 4];
        bits.copy_from_slice(bytes);
        *magnitude = f32::from_le_bytes(bits);
    }
    let mut first = 0;
    for (number, bytes) in positions.chunks_exact(2).enumerate() {
        let at = usize::from(u16::from_le_bytes([bytes[0], bytes[1]]));
        if at < first {
            return Err(wrong("positions that do not ascend"));
        }
        if at >= len {
            return Err(wrong("a position outside the chunk"));
        }
        then(at, value(bits[number / 4] >> (2 * (number % 4)), magnitudes));
        first = at + 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sent(numbers: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let (mut residual, mut packet) = (numbers.to_vec(), vec![0; packet_len(numbers.len())]);
        encode(&mut residual, &mut packet);
        let mut decoded = vec![1.; numbers.len()];
        decode(&packet, &mut decoded).unwrap();
        (decoded, residual)
    }

    proptest! {
        #[test]
        fn the_largest_are_sent_and_the_others_stay(numbers in prop::collection::vec(-1f32..1., 1..5000)) {
            let (decoded, residual) = sent(&numbers);
            for (chunk, (decoded, residual)) in
                numbers.chunks(CHUNK).zip(decoded.chunks(CHUNK).zip(residual.chunks(CHUNK)))
            {
                let mut sorted: Vec<f32> = chunk.iter().map(|x| x.abs()).collect();
                sorted.sort_by(|a, b| b.total_cmp(a));
                let smallest = sorted[chunk.len().div_ceil(ONE_OF) - 1];
                prop_assert!(decoded.iter().filter(|x| **x != 0.).count() <= chunk.len().div_ceil(ONE_OF));
                for ((x, decoded), residual) in chunk.iter().zip(decoded).zip(residual) {
                    prop_assert_eq!(*residual, x - decoded);
                    if x.abs() < smallest {
                        prop_assert_eq!(*decoded, 0.);
                    }
                    if *decoded != 0. {
                        prop_assert_eq!(decoded.signum(), x.signum());
                    }
                }
            }
        }
    }

    #[test]
    fn a_hundred_times_fewer_bytes() {
        assert_eq!(packet_len(1 << 20), 256 * 152);
        assert!(4 * (1 << 20) / packet_len(1 << 20) > 100);
        assert_eq!([0, 1, 64, 65, 4096, 4097].map(packet_len), [0, 11, 11, 13, 152, 163]);
    }

    #[test]
    fn of_equal_numbers_the_first_are_sent() {
        let (decoded, _) = sent(&[0.5; 128]);
        assert!(decoded[..2].iter().all(|x| *x == 0.5) && decoded[2..].iter().all(|x| *x == 0.));
    }

    #[test]
    fn numbers_that_are_not_finite_are_received_as_nan() {
        for bad in [f32::NAN, f32::NEG_INFINITY] {
            let mut numbers = vec![1f32; 100];
            numbers[70] = bad;
            let (decoded, residual) = sent(&numbers);
            assert!(decoded[70].is_nan() && residual.iter().all(|x| x.is_finite()));
        }
    }

    // INV-28
    #[test]
    fn positions_that_are_outside_or_do_not_ascend_are_refused() {
        let mut packet = vec![0; packet_len(128)];
        let set = |packet: &mut Vec<u8>, all: [u16; 2]| {
            packet[8..10].copy_from_slice(&all[0].to_le_bytes());
            packet[10..12].copy_from_slice(&all[1].to_le_bytes());
        };
        let mut numbers = vec![0.; 128];
        set(&mut packet, [3, 127]);
        decode(&packet, &mut numbers).unwrap();
        for wrong in [[3, 3], [4, 3], [3, 128], [u16::MAX, u16::MAX]] {
            set(&mut packet, wrong);
            assert!(decode(&packet, &mut numbers).is_err(), "{wrong:?}");
        }
    }
}
