//! The compression of gradients that workers send to each other.
//!
//! A lossy codec replaces a vector by a *packet* of fewer bytes and by a *residual*: the part of the vector that the
//! packet does not contain. Adding the residual to the next vector is called error feedback: nothing is lost, it is
//! sent later.
//!
//! | module | contents |
//! |---|---|
//! | `eight_bits` | 8 bits per number, with a scale for each block |
//! | `largest` | the largest numbers of a chunk |
//! | `top_k` | the largest 64 of each 4,096 numbers: their positions, and 2 bits for each |
//! | `sparse_sum` | the sum of the packets of several senders that contain few numbers |
//! | `low_rank` | the factors of a matrix (PowerSGD) |

pub mod eight_bits;
mod largest;
pub mod low_rank;
mod sparse_sum;
pub mod top_k;

use crate::kernel::fold_scaled;
use crate::{Result, Wire};
use sparse_sum::SparseSum;
use std::fmt;
use std::str::FromStr;

/// The form in which the gradients of `f32` variables, or what local steps have changed, are sent to other workers.
///
/// | compression | bytes of a gradient | error feedback |
/// |---|---|---|
/// | [`None`](Compression::None) | 4 per number | |
/// | [`F16`](Compression::F16), [`Bf16`](Compression::Bf16) | 2 per number | no |
/// | [`EightBits`](Compression::EightBits) | 1.02 per number | yes |
/// | [`TopK`](Compression::TopK) | 0.037 per number | yes |
/// | [`LowRank`](Compression::LowRank) | 4 · rank · (rows + columns) per matrix | yes |
///
/// # 16 bits
///
/// The gradients of each replica are rounded once, including gradients by row. They are added in `f32`, and the sum of
/// dense gradients is rounded again. For a number of replicas per worker that is a power of two, such as 2 or 4, a
/// worker sends the sum of its replicas' dense gradients, which is not rounded and takes 4 bytes per number. To halve
/// these bytes, use one replica with several threads.
///
/// `bf16` has the range of `f32`. In `f16`, gradients from 65,520 on become infinite, which `on_not_finite` finds as in
/// `f32`. Those below 3e-8 become zero. What workers have changed in local steps is divided by their number before it
/// is rounded. If the mean is not finite in `f16`, the outer step is an error of the kind `NotFinite`.
///
/// # Error feedback
///
/// The other forms keep a *residual* for each replica: what has not been sent is added to the next gradient. A worker's
/// residuals take twice the memory of the gradients of its replicas. They change in steps that are applied, and not in
/// those that are skipped. A replica without examples keeps its residual.
///
/// With local steps, no gradients are sent. In an outer step, each worker sends what it has changed, as one replica,
/// and has one residual. See the builder's `local_steps`.
///
/// Each replica's dense gradients are compressed after micro-batches have been added up, the loss scale has been undone
/// and the gradient has been multiplied by its weight. Each worker receives what all replicas send, so the bytes grow
/// with the number of replicas. Gradients are not sent while backward continues. Variables with fewer than 1,024
/// elements, `f64`, and gradients by row are sent uncompressed.
///
/// Residuals are part of the optimizer's component of a checkpoint. With the same number of replicas, a resumed
/// training is bit-identical to one without interruption. With fewer replicas, residuals of the others are added to
/// theirs. If a worker is lost and a `Training` resumes without a checkpoint, its residuals are lost: those of its
/// replacement are zero, and the weights stay equal on all workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Compression {
    /// No compression: `f32` numbers are sent as they are.
    #[default]
    None,
    /// Numbers of 16 bits: [`Wire::F16`].
    F16,
    /// Numbers of 16 bits with the range of `f32`: [`Wire::Bf16`].
    Bf16,
    /// Integers of 8 bits. Each block of 256 numbers has a scale, so that its largest number is ±127.
    EightBits,
    /// The largest 64 of each 4,096 numbers, each as its position, its sign and one of two magnitudes.
    TopK,
    /// Two factors of each matrix (PowerSGD). A variable with more than two axes is a matrix with the rows of its first
    /// axis. Other variables are sent uncompressed, and so are matrices that do not have more numbers than their
    /// factors.
    LowRank {
        /// The number of columns of a factor, at least 1. 1 to 4 are usual.
        rank: usize,
    },
}

/// The smallest number of elements of a variable that is compressed with error feedback. Smaller ones are sent
/// uncompressed.
pub const MIN_ELEMENTS: usize = 1024;

/// The granularity, in elements, with which a vector can be partitioned into ranges that are encoded and
/// decoded separately.
pub const CHUNK: usize = 4096;

/// A codec of one variable's gradient that needs error feedback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// The codec of [`Compression::EightBits`].
    EightBits,
    /// The codec of [`Compression::TopK`].
    TopK,
    /// The codec of [`Compression::LowRank`], for a matrix of this shape.
    LowRank(low_rank::Shape),
}

impl Compression {
    /// Returns the type of the numbers that are sent without error feedback.
    pub fn wire(self) -> Wire {
        match self {
            Compression::F16 => Wire::F16,
            Compression::Bf16 => Wire::Bf16,
            _ => Wire::Full,
        }
    }

    /// Returns `true` if gradients are sent with error feedback.
    pub fn has_feedback(self) -> bool {
        matches!(self, Compression::EightBits | Compression::TopK | Compression::LowRank { .. })
    }

    /// Returns the codec of a variable of `f32` with the given shape. Returns `None` if its gradient is sent without
    /// error feedback.
    pub fn codec(self, dims: &[usize]) -> Option<Codec> {
        let len = dims.iter().try_fold(1usize, |len, dim| len.checked_mul(*dim))?;
        if len < MIN_ELEMENTS {
            return None;
        }
        match self {
            Compression::None | Compression::F16 | Compression::Bf16 => None,
            Compression::EightBits => Some(Codec::EightBits),
            Compression::TopK => Some(Codec::TopK),
            Compression::LowRank { rank } => low_rank::Shape::of(dims, rank).map(Codec::LowRank),
        }
    }
}

/// A codec whose packets are encoded and decoded in ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeCodec {
    /// The codec of [`Compression::EightBits`].
    EightBits,
    /// The codec of [`Compression::TopK`].
    TopK,
}

impl RangeCodec {
    /// Returns the number of bytes of the packet of `len` numbers. If `len` is a multiple of [`CHUNK`], the packet of
    /// the numbers that follow begins at this byte.
    pub fn packet_len(self, len: usize) -> usize {
        match self {
            RangeCodec::EightBits => eight_bits::packet_len(len),
            RangeCodec::TopK => top_k::packet_len(len),
        }
    }

    /// Encodes numbers, and replaces them by the residual. `packet` must have the [length](Self::packet_len) of their
    /// packet. The residual of a number that is not finite is 0.
    ///
    /// # Panics
    /// Panics if `packet` does not have this length.
    pub fn encode(self, numbers: &mut [f32], packet: &mut [u8]) {
        match self {
            RangeCodec::EightBits => eight_bits::encode(numbers, packet),
            RangeCodec::TopK => top_k::encode(numbers, packet),
        }
    }

    /// Decodes a packet. `packet` must have the [length](Self::packet_len) of the packet of the numbers.
    ///
    /// # Errors
    /// - [`Error::Bytes`](crate::Error::Bytes): the packet is damaged.
    ///
    /// # Panics
    /// Panics if `packet` does not have this length.
    pub fn decode(self, packet: &[u8], numbers: &mut [f32]) -> Result<()> {
        match self {
            RangeCodec::EightBits => {
                eight_bits::decode(packet, numbers);
                Ok(())
            }
            RangeCodec::TopK => top_k::decode(packet, numbers),
        }
    }

    /// Decodes the packets of several senders, and writes the sum of their numbers, each in the order of
    /// [`fold`](crate::kernel::fold). A sender without a packet sends zeros. Each packet must have the
    /// [length](Self::packet_len) of the packet of the numbers.
    ///
    /// # Errors
    /// - [`Error::Bytes`](crate::Error::Bytes): a packet is damaged.
    ///
    /// # Panics
    /// Panics if a packet does not have this length.
    pub fn decode_sum(self, packets: &[Option<&[u8]>], sum: &mut [f32]) -> Result<()> {
        let len = self.packet_len(sum.len());
        assert!(packets.iter().flatten().all(|packet| packet.len() == len), "the packets of all chunks");
        if self == RangeCodec::TopK {
            return SparseSum::new(packets.len()).write(packets, sum);
        }
        let mut decoded = vec![0f32; packets.len() * CHUNK.min(sum.len())];
        let weights = vec![1f32; packets.len()];
        for (chunk, sum) in sum.chunks_mut(CHUNK).enumerate() {
            let start = self.packet_len(chunk * CHUNK);
            let bytes = start..start + self.packet_len(sum.len());
            for (packet, decoded) in packets.iter().zip(decoded.chunks_mut(sum.len())) {
                match packet {
                    Some(packet) => self.decode(&packet[bytes.clone()], decoded)?,
                    None => decoded.fill(0.),
                }
            }
            let inputs: Vec<&[f32]> = decoded.chunks(sum.len()).take(packets.len()).collect();
            fold_scaled(&inputs, &weights, sum);
        }
        Ok(())
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Compression::None => f.write_str("none"),
            Compression::F16 => f.write_str("f16"),
            Compression::Bf16 => f.write_str("bf16"),
            Compression::EightBits => f.write_str("8bit"),
            Compression::TopK => f.write_str("topk"),
            Compression::LowRank { rank } => write!(f, "lowrank-{rank}"),
        }
    }
}

/// Parses the names that [`Display`](fmt::Display) prints.
impl FromStr for Compression {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        use Compression::*;
        if let Some(found) =
            [None, F16, Bf16, EightBits, TopK].into_iter().find(|one| one.to_string() == name)
        {
            return Ok(found);
        }
        let rank = name.strip_prefix("lowrank-").and_then(|rank| rank.parse().ok()).filter(|rank| *rank > 0);
        rank.map(|rank| LowRank { rank }).ok_or_else(|| {
            format!(
                "{name:?} is no compression; use none, f16, bf16, 8bit, topk or lowrank-R, such as lowrank-4"
            )
        })
    }
}

/// Returns the residual, or 0 if it is not finite, because such a residual could never be sent.
fn finite(residual: f32) -> f32 {
    if residual.is_finite() { residual } else { 0. }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CODECS: [RangeCodec; 2] = [RangeCodec::EightBits, RangeCodec::TopK];

    fn any_numbers() -> impl Strategy<Value = Vec<f32>> {
        let number = prop_oneof![
            4 => -1f32..1.,
            1 => any::<u32>().prop_map(f32::from_bits),
            1 => Just(0.),
            1 => -1e-20f32..1e-20,
        ];
        prop::collection::vec(number, 0..9000)
    }

    fn bits(numbers: &[f32]) -> Vec<u32> {
        numbers.iter().map(|x| x.to_bits()).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_packet_and_its_residual_are_the_numbers(numbers in any_numbers()) {
            for codec in CODECS {
                let (mut residual, mut packet) = (numbers.clone(), vec![0; codec.packet_len(numbers.len())]);
                codec.encode(&mut residual, &mut packet);
                let mut decoded = vec![f32::NAN; numbers.len()];
                codec.decode(&packet, &mut decoded).unwrap();
                for ((number, residual), decoded) in numbers.iter().zip(&residual).zip(&decoded) {
                    let expected = finite(number - decoded);
                    prop_assert_eq!(residual.to_bits(), expected.to_bits(), "{:?}: {} as {}", codec, number, decoded);
                }
            }
        }

        #[test]
        fn ranges_have_the_packets_of_the_complete_vector(numbers in any_numbers(), cut in 0usize..3) {
            let cut = (cut * CHUNK).min(numbers.len() / CHUNK * CHUNK);
            for codec in CODECS {
                let packet_of = |numbers: &[f32]| {
                    let (mut numbers, mut packet) = (numbers.to_vec(), vec![0; codec.packet_len(numbers.len())]);
                    codec.encode(&mut numbers, &mut packet);
                    (packet, numbers)
                };
                let (packet, residual) = packet_of(&numbers);
                let ((front, first), (back, second)) = (packet_of(&numbers[..cut]), packet_of(&numbers[cut..]));
                prop_assert_eq!(&packet, &[front, back].concat());
                prop_assert_eq!(bits(&residual), bits(&[first, second].concat()));
            }
        }

        // INV-7
        #[test]
        fn a_sum_of_packets_is_the_fold_of_their_numbers(
            senders in prop::collection::vec(prop::option::weighted(0.8, any::<u64>()), 0..6),
            len in 0usize..9000,
            few in any::<bool>(),
        ) {
            for codec in CODECS {
                let packet_of = |seed: u64| {
                    let draws = crate::random::Draws::new(seed, 0);
                    let number = |at: usize| match draws.bits(at as u64) % 50 {
                        0 => f32::from_bits(draws.bits((len + at) as u64) as u32),
                        1 => -0.,
                        x if few => if x == 2 { -0.25 } else { 0. },
                        x => x as f32 - 25.,
                    };
                    let mut numbers: Vec<f32> = (0..len).map(number).collect();
                    let mut packet = vec![0; codec.packet_len(len)];
                    codec.encode(&mut numbers, &mut packet);
                    packet
                };
                let packets: Vec<_> = senders.iter().map(|seed| seed.map(packet_of)).collect();
                let packets: Vec<_> = packets.iter().map(Option::as_deref).collect();
                let decoded = packets.iter().map(|packet| {
                    let mut numbers = vec![0.; len];
                    packet.iter().for_each(|packet| codec.decode(packet, &mut numbers).unwrap());
                    numbers
                });
                let decoded: Vec<Vec<f32>> = decoded.collect();
                let (mut expected, mut sum) = (vec![0.; len], vec![f32::NAN; len]);
                let inputs: Vec<&[f32]> = decoded.iter().map(Vec::as_slice).collect();
                fold_scaled(&inputs, &vec![1.; inputs.len()], &mut expected);
                codec.decode_sum(&packets, &mut sum).unwrap();
                // The sign of NaN is not determined.
                let bits = |x: &f32| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() };
                let bits = |all: &[f32]| all.iter().map(bits).collect::<Vec<_>>();
                prop_assert_eq!(bits(&sum), bits(&expected), "{:?}", codec);
            }
        }

        // INV-28
        #[test]
        fn garbage_is_an_error_and_no_panic(len in 0usize..9000, seed: u64) {
            for codec in CODECS {
                let draws = crate::random::Draws::new(seed, 0);
                let packet: Vec<u8> =
                    (0..codec.packet_len(len)).map(|at| draws.bits(at as u64) as u8).collect();
                let mut numbers = vec![0.; len];
                let decoded = codec.decode(&packet, &mut numbers);
                let mut sum = vec![0.; len];
                let summed = codec.decode_sum(&[None, Some(&packet), Some(&packet)], &mut sum);
                prop_assert_eq!(summed.is_ok(), decoded.is_ok());
                if codec == RangeCodec::EightBits {
                    prop_assert!(decoded.is_ok());
                }
            }
        }
    }

    #[test]
    fn names_round_trip() {
        for one in [
            Compression::None,
            Compression::F16,
            Compression::Bf16,
            Compression::EightBits,
            Compression::TopK,
            Compression::LowRank { rank: 4 },
        ] {
            assert_eq!(one.to_string().parse(), Ok(one));
        }
        for wrong in ["8", "lowrank", "lowrank-0", "lowrank-x"] {
            assert!(wrong.parse::<Compression>().unwrap_err().contains("8bit, topk or lowrank-R"), "{wrong}");
        }
    }

    #[test]
    fn small_variables_and_thin_matrices_have_no_codec() {
        let low_rank = Compression::LowRank { rank: 4 };
        assert_eq!(Compression::EightBits.codec(&[1023]), None);
        assert_eq!(Compression::EightBits.codec(&[1024]), Some(Codec::EightBits));
        assert_eq!(Compression::TopK.codec(&[32, 32]), Some(Codec::TopK));
        assert_eq!(Compression::EightBits.codec(&[usize::MAX, 2]), None);
        for dims in [&[4096][..], &[1024, 4], &[1, 4096], &[]] {
            assert_eq!(low_rank.codec(dims), None, "{dims:?}");
        }
        assert!(matches!(low_rank.codec(&[64, 3, 16]), Some(Codec::LowRank(_))));
        for without in [Compression::None, Compression::F16, Compression::Bf16] {
            assert!(without.codec(&[1 << 20]).is_none() && !without.has_feedback());
        }
    }
}
