//! Numbers that are computed by a formula. This program and the peers compute the same bits, so they need not exchange
//! files.

/// Returns 24 pseudorandom bits, which depend on the stream and on the position `i`.
pub fn noise(stream: u32, i: usize) -> u32 {
    let mut x = (i as u32).wrapping_add(stream.wrapping_mul(0x9E37_79B9));
    x ^= x >> 16;
    x = x.wrapping_mul(0x7FEB_352D);
    x ^= x >> 15;
    x = x.wrapping_mul(0x846C_A68B);
    (x ^ (x >> 16)) >> 8
}

/// Returns a pseudorandom float in [0, 1), which depends on the stream and on the position `i`.
pub fn unit(stream: u32, i: usize) -> f32 {
    noise(stream, i) as f32 / (1 << 24) as f32
}

/// Returns the weight of shape `[out, in]` and the bias of shape `[out]` of layer `k`. Values are between -1/√in and
/// 1/√in.
pub fn layer(k: u32, width: usize, height: usize) -> (Vec<f32>, Vec<f32>) {
    let scale = (1. / (width as f64).sqrt()) as f32;
    let draw = |stream, count| (0..count).map(|i| (unit(stream, i) * 2. - 1.) * scale).collect();
    (draw(2 * k, width * height), draw(2 * k + 1, height))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_formula_is_that_of_the_peers() {
        // The expected values of common.py: noise(3, 4).
        assert_eq!((0..4).map(|i| noise(3, i)).collect::<Vec<_>>(), NOISE);
        assert_eq!(unit(3, 0), NOISE[0] as f32 * (-24f32).exp2());
    }

    const NOISE: [u32; 4] = [1018909, 15910406, 10394880, 7824436];
}
