//! The message of a worker about the hot rows whose changes it sends. It is part of the result of a step.

use super::counts::Candidate;

/// The report of a worker about the hot rows whose changes it sends: its own hot rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HotReport {
    /// The rows; `None` if the worker has no hot row of its own, or could not read them.
    pub(super) rows: Option<ReportedRows>,
    /// The rows that the worker proposes; `None` if it has counted too few changes since the last choice.
    pub(super) candidates: Option<Vec<Candidate>>,
}

/// The hot rows of a worker after a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ReportedRows {
    /// The digest of the ids of all hot rows. The report is used only by workers with the same rows.
    pub digest: u64,
    /// Whether each of the worker's own rows has changed, in ascending order of ids.
    pub changed: Vec<bool>,
    /// The bytes of the rows that have changed.
    pub bytes: Vec<u8>,
}

/// The bits of the first byte of a report.
const HAS_ROWS: u8 = 1;
const IS_HALVED: u8 = 2;
const HAS_CANDIDATES: u8 = 4;

/// The layout of the rows of a table as bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowLayout {
    /// The size of a row in bytes.
    pub bytes: usize,
    /// Whether rows consist of little-endian `f32`. Those that are exact in bf16 are sent in half of the bytes.
    pub is_f32: bool,
}

impl HotReport {
    /// Returns `true` if the report contains nothing.
    pub fn is_empty(&self) -> bool {
        self.rows.is_none() && self.candidates.is_none()
    }

    /// Returns the number of rows whose values the report contains.
    pub fn changed(&self) -> usize {
        self.rows.iter().flat_map(|rows| &rows.changed).filter(|changed| **changed).count()
    }

    /// Appends the encoding of the report.
    pub fn encode(&self, layout: RowLayout, to: &mut Vec<u8>) {
        let halves = self.rows.as_ref().filter(|_| layout.is_f32).and_then(|rows| halved(&rows.bytes));
        let flag = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        to.push(
            flag(self.rows.is_some(), HAS_ROWS)
                | flag(halves.is_some(), IS_HALVED)
                | flag(self.candidates.is_some(), HAS_CANDIDATES),
        );
        if let Some(ReportedRows { digest, changed, bytes }) = &self.rows {
            to.extend(digest.to_le_bytes());
            to.extend(count(changed.len()));
            let packed = |bits: &[bool]| bits.iter().rev().fold(0u8, |byte, bit| byte << 1 | u8::from(*bit));
            to.extend(changed.chunks(8).map(packed));
            to.extend_from_slice(halves.as_ref().unwrap_or(bytes));
        }
        if let Some(candidates) = &self.candidates {
            to.extend(count(candidates.len()));
            for (id, count) in candidates {
                to.extend(id.to_le_bytes());
                to.extend(count.to_le_bytes());
            }
        }
    }

    /// Decodes a report, and removes it from `from`. Returns `None` if the bytes do not begin with a report.
    // INV-28: memory is only allocated for bytes that are there.
    pub fn decode(layout: RowLayout, from: &mut &[u8]) -> Option<Self> {
        let flags = *from.split_off_first()?;
        let mut report = Self::default();
        if flags & HAS_ROWS != 0 {
            let digest = u64::from_le_bytes(*take(from)?);
            let rows = u32::from_le_bytes(*take(from)?) as usize;
            let bits = from.split_off(..rows.div_ceil(8))?;
            let changed: Vec<bool> = (0..rows).map(|row| bits[row / 8] >> (row % 8) & 1 == 1).collect();
            let count = changed.iter().filter(|changed| **changed).count();
            let bytes = count.checked_mul(layout.bytes)?;
            let bytes = if flags & IS_HALVED == 0 {
                from.split_off(..bytes)?.to_vec()
            } else {
                let halves = from.split_off(..bytes / 2)?.as_chunks::<2>().0;
                halves.iter().flat_map(|[low, high]| [0, 0, *low, *high]).collect()
            };
            report.rows = Some(ReportedRows { digest, changed, bytes });
        }
        if flags & HAS_CANDIDATES != 0 {
            let candidates = u32::from_le_bytes(*take(from)?) as usize;
            let bytes = from.split_off(..candidates.checked_mul(12)?)?.as_chunks::<12>().0;
            let candidate = |bytes: &[u8; 12]| {
                let (mut id, mut count) = ([0; 8], [0; 4]);
                id.copy_from_slice(&bytes[..8]);
                count.copy_from_slice(&bytes[8..]);
                (i64::from_le_bytes(id), u32::from_le_bytes(count))
            };
            report.candidates = Some(bytes.iter().map(candidate).collect());
        }
        Some(report)
    }
}

fn take<'a, const N: usize>(from: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    from.split_off(..N)?.first_chunk()
}

/// Returns the encoding of a number of rows. There are never 2³² hot rows.
fn count(rows: usize) -> [u8; 4] {
    u32::try_from(rows).unwrap_or(u32::MAX).to_le_bytes()
}

/// Returns the upper halves of `f32` values, or `None` if the lower half of one is not zero.
fn halved(bytes: &[u8]) -> Option<Vec<u8>> {
    let values = bytes.as_chunks::<4>().0;
    let half = |[a, b, low, high]: &[u8; 4]| (*a == 0 && *b == 0).then_some([*low, *high]);
    let halves: Option<Vec<[u8; 2]>> = values.iter().map(half).collect();
    halves.map(|halves| halves.concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_testing::SplitMix;

    #[test]
    fn reports_are_decoded_as_they_were_and_garbage_is_refused() {
        let mut random = SplitMix(5);
        for round in 0..300 {
            let layout = RowLayout { bytes: 4 * random.below(4), is_f32: random.below(2) == 0 };
            let changed: Vec<bool> = (0..random.below(20)).map(|_| random.below(2) == 0).collect();
            let count = changed.iter().filter(|changed| **changed).count() * layout.bytes;
            let zeros = random.below(2) == 0;
            let byte =
                |at: usize, random: &mut SplitMix| if zeros && at % 4 < 2 { 0 } else { random.bits() as u8 };
            let bytes = (0..count).map(|at| byte(at, &mut random)).collect();
            let rows = ReportedRows { digest: random.bits(), changed, bytes };
            let candidates = (0..random.below(5)).map(|_| (random.bits() as i64, random.bits() as u32));
            let candidates: Vec<_> = candidates.collect();
            let report = HotReport {
                rows: (random.below(4) > 0).then_some(rows),
                candidates: (random.below(2) > 0).then_some(candidates),
            };
            let mut encoded = Vec::new();
            report.encode(layout, &mut encoded);
            assert_eq!(encoded.len() == 1, report.is_empty());
            encoded.push(77);
            let mut rest = &encoded[..];
            assert_eq!(HotReport::decode(layout, &mut rest), Some(report), "{round}");
            assert_eq!(rest, [77]);
            for length in 0..encoded.len() - 1 {
                assert_eq!(HotReport::decode(layout, &mut &encoded[..length]), None);
            }
            let at = random.below(encoded.len());
            encoded[at] ^= random.bits() as u8;
            // Anything but a panic.
            let _ = HotReport::decode(layout, &mut &encoded[..]);
        }
        let halved = HotReport {
            rows: Some(ReportedRows {
                digest: 1,
                changed: vec![true],
                bytes: vec![0, 0, 1, 2, 0, 0, 0xc0, 0x7f],
            }),
            candidates: None,
        };
        let mut encoded = Vec::new();
        halved.encode(RowLayout { bytes: 8, is_f32: true }, &mut encoded);
        assert_eq!(encoded.len(), 1 + 8 + 4 + 1 + 4);
    }
}
