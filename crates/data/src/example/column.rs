//! The column that collects the values of a feature.

use super::feature::{Feature, Kind};
use super::features::{FixedLen, VarLen, Wanted};
use super::message;
use crate::file::ElementLimit;
use distribute_tensor::HostTensor;

/// A column that collects the values of one feature from all records so far.
#[derive(Debug)]
pub(super) struct Column<'f> {
    wanted: &'f Wanted,
    /// The number of values per record; for a feature of any length, the number of values per row.
    size: usize,
    values: Feature,
    /// The index at which the values of each record end, if the numbers of values may differ.
    ends: Vec<usize>,
    limit: ElementLimit,
}

impl<'f> Column<'f> {
    pub(super) fn new(wanted: &'f Wanted, limit: ElementLimit) -> Self {
        let (kind, shape) = match wanted {
            Wanted::Fixed(FixedLen { kind, shape, .. }) | Wanted::Var(VarLen { kind, shape, .. }) => {
                (kind, shape)
            }
        };
        Self { wanted, size: shape.iter().product(), values: kind.empty(), ends: Vec::new(), limit }
    }

    /// Reserves memory for the values of `records` records, but not for more values than `bytes` bytes can
    /// encode.
    pub(super) fn reserve(&mut self, records: usize, bytes: usize) {
        let values = self.size.saturating_mul(records);
        match &mut self.values {
            Feature::Bytes(strings) => strings.reserve(values.min(bytes / 2)),
            Feature::Floats(floats) => floats.reserve(values.min(bytes / 4)),
            Feature::Ints(ints) => ints.reserve(values.min(bytes)),
        }
    }

    /// Adds the values of the feature in one record; `feature` is `None` if the record does not have it. After an
    /// error, some of the values may remain in the column.
    #[inline]
    pub(super) fn push(&mut self, feature: Option<&[u8]>, record: &[u8]) -> Result<(), String> {
        let list = match feature.map(message::list) {
            None => None,
            Some(list) => list.map_err(|broken| broken.describe(record))?,
        };
        let Some((kind, list)) = list else { return self.push_missing() };
        let wanted = self.values.kind();
        if kind != wanted {
            return Err(format!("found {}, expected {}", kind.name(), wanted.name()));
        }
        let before = self.values.len();
        // An upper bound in nearly all cases: two bytes of a record are a string, one is a number.
        let most = list.len().saturating_mul(wanted.bytes() / if wanted == Kind::Bytes { 2 } else { 1 });
        if self.taken(0).saturating_add(most as u64 + list.len() as u64) > self.limit.bytes() {
            let count = message::count(&list, wanted).map_err(|broken| broken.describe(record))?;
            let bytes = if wanted == Kind::Bytes { list.len() as u64 } else { 0 };
            self.limit.check("the column", self.taken(count).saturating_add(bytes))?;
        }
        message::values(&list, &mut self.values).map_err(|broken| broken.describe(record))?;
        let found = self.values.len() - before;
        match self.wanted {
            Wanted::Fixed(fixed) if found != self.size => Err(format!(
                "found {found} {}, expected {} for shape {:?}",
                wanted.name(),
                self.size,
                fixed.shape
            )),
            Wanted::Fixed(_) => Ok(()),
            Wanted::Var(var) if !found.is_multiple_of(self.size) => Err(format!(
                "found {found} {}, expected a multiple of {} for rows of shape {:?}",
                wanted.name(),
                self.size,
                var.shape
            )),
            Wanted::Var(_) => {
                self.ends.push(self.values.len());
                Ok(())
            }
        }
    }

    /// Returns the number of bytes that the values and `more` additional values occupy, not including the bytes of
    /// strings.
    fn taken(&self, more: usize) -> u64 {
        self.values.len().saturating_add(more).saturating_mul(self.values.kind().bytes()) as u64
    }

    fn push_missing(&mut self) -> Result<(), String> {
        match self.wanted {
            Wanted::Fixed(FixedLen { default: Some(default), .. }) => {
                let times = if default.len() == self.size { 1 } else { self.size };
                self.limit.check("the column", self.taken(self.size))?;
                self.values.append(default, times);
                Ok(())
            }
            Wanted::Fixed(FixedLen { shape, .. }) => {
                let kind = self.values.kind().name();
                Err(format!("missing, expected {kind} of shape {shape:?}: a default would replace it"))
            }
            Wanted::Var(_) => {
                self.ends.push(self.values.len());
                Ok(())
            }
        }
    }

    /// Returns the column as a tensor with `records` rows, and the column of lengths if it was requested.
    pub(super) fn finish(self, records: usize) -> Result<(HostTensor, Option<HostTensor>), String> {
        let (shape, values, lengths) = match self.wanted {
            Wanted::Fixed(fixed) => {
                let shape = [&[records][..], &fixed.shape].concat();
                (shape, self.values, None)
            }
            Wanted::Var(var) => {
                let starts = std::iter::once(0).chain(self.ends.iter().copied());
                let lens = self.ends.iter().zip(starts).map(|(end, start)| end - start);
                let longest = lens.clone().max().unwrap_or_default();
                let lengths = lens.map(|len| (len / self.size) as i64).collect();
                let shape = [&[records, longest / self.size][..], &var.shape].concat();
                let cells = longest.saturating_mul(records).saturating_mul(self.values.kind().bytes());
                if cells as u64 > self.limit.bytes() {
                    let starts = std::iter::once(&0).chain(&self.ends);
                    let mut lens = self.ends.iter().zip(starts).map(|(end, start)| end - start);
                    let widest = lens.position(|len| len == longest).unwrap_or_default();
                    let what =
                        format!("a column of shape {shape:?}, as wide as record {widest} of the batch,");
                    self.limit.check(&what, cells as u64)?;
                }
                let values = padded(self.values, &self.ends, longest, &var.padding)
                    .ok_or_else(|| format!("a column of shape {shape:?} does not fit into memory"))?;
                (shape, values, var.lengths.is_some().then(|| HostTensor::vector(lengths)))
            }
        };
        let tensor =
            HostTensor::from_buffer(values.into_buffer(), shape).map_err(|error| error.to_string())?;
        Ok((tensor, lengths))
    }
}

/// Returns the values, with those of each record padded to `longest`. `ends` are the indices at which records
/// end. Returns `None` if there is not enough memory.
pub(super) fn padded(values: Feature, ends: &[usize], longest: usize, padding: &Feature) -> Option<Feature> {
    fn fill<T: Clone>(values: Vec<T>, ends: &[usize], longest: usize, padding: &T) -> Option<Vec<T>> {
        let mut out = Vec::new();
        out.try_reserve_exact(longest.checked_mul(ends.len())?).ok()?;
        let mut values = values.into_iter();
        let mut start = 0;
        for end in ends {
            out.extend(values.by_ref().take(end - start));
            out.extend(std::iter::repeat_n(padding.clone(), longest - (end - start)));
            start = *end;
        }
        Some(out)
    }
    if longest.checked_mul(ends.len())? == values.len() {
        return Some(values);
    }
    match (values, padding) {
        (Feature::Bytes(v), Feature::Bytes(p)) => fill(v, ends, longest, p.first()?).map(Feature::Bytes),
        (Feature::Floats(v), Feature::Floats(p)) => fill(v, ends, longest, p.first()?).map(Feature::Floats),
        (Feature::Ints(v), Feature::Ints(p)) => fill(v, ends, longest, p.first()?).map(Feature::Ints),
        _ => None,
    }
}
