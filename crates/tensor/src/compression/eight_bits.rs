//! Numbers of 8 bits with a scale for each block.
//!
//! A block of 256 numbers is sent as its scale, an `f32`, and one signed byte per number. The number is the byte times
//! the scale. Ties are rounded to even. If a number of a block is not finite, all numbers of the block are received as
//! NaN. A block whose numbers all have magnitudes below 2⁻¹⁰⁰ is received as zeros.

use super::finite;

/// The number of elements that share a scale.
pub const BLOCK: usize = 256;

/// The number of bytes of a scale.
const SCALE: usize = size_of::<f32>();

/// The largest magnitude of an encoded byte.
const LEVELS: f32 = 127.;

/// The threshold below which a block is sent as zeros: 2⁻¹⁰⁰. From this magnitude on, the inverse of the scale is
/// finite.
const SMALLEST: f32 = f32::from_bits((127 - 100) << 23);

/// Returns the number of bytes of the packet of `len` numbers.
pub fn packet_len(len: usize) -> usize {
    len + len.div_ceil(BLOCK) * SCALE
}

/// Encodes numbers into `packet`, and replaces each number by its residual: the difference between the number and its
/// decoded value. If a number of a block is not finite, the residuals of the block are zeros.
///
/// # Panics
/// Panics if `packet` does not have the [length](packet_len) of the packet.
pub fn encode(numbers: &mut [f32], packet: &mut [u8]) {
    assert_eq!(packet.len(), packet_len(numbers.len()), "a byte for each number, and the scales");
    for (numbers, packet) in numbers.chunks_mut(BLOCK).zip(packet.chunks_mut(BLOCK + SCALE)) {
        let (scale_bytes, bytes) = packet.split_at_mut(SCALE);
        // Bits of magnitudes are ordered like the magnitudes, with NaN above infinity.
        let largest = numbers.iter().fold(0, |largest, x| largest.max(x.to_bits() & 0x7fff_ffff));
        let largest = f32::from_bits(largest);
        let scale = if !largest.is_finite() {
            f32::NAN
        } else if largest < SMALLEST {
            0.
        } else {
            // Without the last bits, products with a byte are exact, and none is above the largest number.
            f32::from_bits((largest / LEVELS).to_bits() & !0x7f)
        };
        scale_bytes.copy_from_slice(&scale.to_le_bytes());
        if scale.is_nan() {
            numbers.fill(0.);
            bytes.fill(0);
            continue;
        }
        let inverse = if scale == 0. { 0. } else { 1. / scale };
        for (number, byte) in numbers.iter_mut().zip(bytes) {
            let level = round(*number * inverse);
            *byte = level as i8 as u8;
            *number = finite(*number - f32::from(level as i8) * scale);
        }
    }
}

/// Rounds a number of magnitude below 2²² to the nearest integer, ties to even, without a branch.
fn round(x: f32) -> f32 {
    /// A magnitude at which `f32` has no fraction. Adding and subtracting this number rounds to an integer.
    const SHIFT: f32 = 12_582_912.;
    (x + SHIFT) - SHIFT
}

/// Decodes a packet.
///
/// # Panics
/// Panics if `packet` does not have the [length](packet_len) of the packet of the numbers.
pub fn decode(packet: &[u8], numbers: &mut [f32]) {
    assert_eq!(packet.len(), packet_len(numbers.len()), "a byte for each number, and the scales");
    for (numbers, packet) in numbers.chunks_mut(BLOCK).zip(packet.chunks(BLOCK + SCALE)) {
        let (scale, bytes) = packet.split_at(SCALE);
        let mut bits = [0; SCALE];
        bits.copy_from_slice(scale);
        let scale = f32::from_le_bytes(bits);
        for (number, byte) in numbers.iter_mut().zip(bytes) {
            *number = f32::from(*byte as i8) * scale;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sent(numbers: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let (mut residual, mut packet) = (numbers.to_vec(), vec![0; packet_len(numbers.len())]);
        encode(&mut residual, &mut packet);
        let mut decoded = vec![1.; numbers.len()];
        decode(&packet, &mut decoded);
        (decoded, residual)
    }

    proptest! {
        #[test]
        fn the_error_is_at_most_half_of_a_level(numbers in prop::collection::vec(-1e3f32..1e3, 0..700)) {
            let (decoded, residual) = sent(&numbers);
            for (block, (decoded, residual)) in
                numbers.chunks(BLOCK).zip(decoded.chunks(BLOCK).zip(residual.chunks(BLOCK)))
            {
                let largest = block.iter().fold(0f32, |largest, x| largest.max(x.abs()));
                for ((x, decoded), residual) in block.iter().zip(decoded).zip(residual) {
                    prop_assert!((x - decoded).abs() <= 0.5001 * largest / 127.);
                    prop_assert_eq!(*residual, x - decoded);
                }
            }
        }
    }

    #[test]
    fn four_numbers_take_about_four_bytes() {
        assert_eq!([0, 1, 256, 257].map(packet_len), [0, 5, 260, 265]);
    }

    #[test]
    fn each_block_has_a_scale() {
        let mut numbers = vec![0.001; 300];
        numbers[7] = -127.;
        let (decoded, residual) = sent(&numbers);
        assert_eq!((decoded[7], residual[7]), (-127., 0.));
        assert_eq!((decoded[0], residual[0]), (0., 0.001));
        // The other block has its own scale.
        assert!((decoded[299] - 0.001).abs() < 1e-7);
    }

    #[test]
    fn a_number_that_is_not_finite_makes_its_block_nan_and_leaves_no_residual() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut numbers = vec![127f32; 512];
            numbers[300] = bad;
            let (decoded, residual) = sent(&numbers);
            assert!(decoded[..256].iter().all(|x| *x == 127.) && decoded[256..].iter().all(|x| x.is_nan()));
            assert!(residual.iter().all(|x| *x == 0.));
        }
    }

    #[test]
    fn tiny_and_huge_numbers_stay_finite() {
        let (decoded, residual) = sent(&[1e-38, -1e-45]);
        assert_eq!((decoded, residual), (vec![0., 0.], vec![1e-38, -1e-45]));
        let (decoded, residual) = sent(&[f32::MAX, -f32::MAX, 1.]);
        assert!(decoded.iter().chain(&residual).all(|x| x.is_finite()), "{decoded:?} {residual:?}");
    }
}
