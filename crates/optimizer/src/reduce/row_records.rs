//! Gradients by row, encoded for other workers.
//!
//! A record starts with the number of rows for each replica and variable, or [`NONE`]. The indices and the values
//! of these rows follow in the same order, each padded to a multiple of 8 bytes. Values of `f32` are sent in the type
//! of the [`Wire`].

use crate::gradients::row_len;
use bytes::Bytes;
use candle_core::{DType, Var};
use distribute_base::internal::{EitherFloat, ReplicaGradient, RowValues, Rows};
use distribute_collective::group::{Buffers, numbers};
use distribute_core::strategy::Wire;
use distribute_tensor::Error;
use std::borrow::Cow;

/// The number that marks a replica without a gradient of the variable, in place of the number of rows.
const NONE: u64 = u64::MAX;

const WORD: usize = size_of::<u64>();

/// Encodes the rows that replicas have of the given variables. On every replica, each of these variables must have a
/// gradient by row or none.
pub(crate) fn encode(
    gradients: &[&[Option<ReplicaGradient>]],
    variables: &[usize],
    wire: Wire,
    buffers: &Buffers,
) -> Bytes {
    let all =
        || gradients.iter().flat_map(|of_replica| variables.iter().map(|number| rows(&of_replica[*number])));
    let size: usize = all()
        .map(|rows| {
            WORD + rows.map_or(0, |rows| {
                rows.rows.len() * WORD + bytes(&rows.values, wire).len().next_multiple_of(WORD)
            })
        })
        .sum();
    let mut buffer = buffers.take(size);
    let mut rest = buffer.bytes_mut();
    let mut put = |bytes: &[u8]| {
        if let Some(place) = rest.split_off_mut(..bytes.len()) {
            place.copy_from_slice(bytes);
        }
    };
    all().for_each(|rows| put(&rows.map_or(NONE, |rows| rows.rows.len() as u64).to_le_bytes()));
    for rows in all().flatten() {
        rows.rows.iter().for_each(|row| put(&(*row as u64).to_le_bytes()));
        let values = bytes(&rows.values, wire);
        put(&values);
        put(&[0; WORD][..values.len().next_multiple_of(WORD) - values.len()]);
    }
    buffer.freeze()
}

/// Decodes the rows of `replicas` replicas. Returns the rows of each variable for each replica. `variables` contains
/// the number of rows of each variable.
///
/// Returns an error if the bytes do not encode rows of these variables.
pub(crate) fn decode(
    record: &[u8],
    replicas: usize,
    variables: &[(&Var, usize)],
    wire: Wire,
) -> Result<Vec<Vec<Option<Rows>>>, Error> {
    let mut reader = Reader { record, rest: record, wire };
    let counts = reader.words(replicas.saturating_mul(variables.len()))?;
    let mut counts = counts.into_iter();
    let mut all = Vec::with_capacity(replicas);
    for _ in 0..replicas {
        let of = |((variable, height), count): (&(&Var, usize), u64)| match count {
            NONE => Ok(None),
            count => reader.rows(variable, *height, count).map(Some),
        };
        all.push(variables.iter().zip(&mut counts).map(of).collect::<Result<Vec<_>, _>>()?);
    }
    if reader.rest.is_empty() { Ok(all) } else { Err(reader.error("more than the rows of a gradient")) }
}

/// Returns the rows of a gradient, or `None` if the gradient is missing or dense.
fn rows(gradient: &Option<ReplicaGradient>) -> Option<&Rows> {
    match gradient {
        Some(ReplicaGradient::Rows(rows)) => Some(rows),
        _ => None,
    }
}

/// Returns the values in the encoding in which they are sent.
fn bytes(values: &RowValues, wire: Wire) -> Cow<'_, [u8]> {
    match values {
        RowValues::Host(EitherFloat::F32(values)) if wire != Wire::Full => {
            let mut bytes = vec![0; wire.len(size_of_val(values.as_slice()))];
            wire.encode(values, &mut bytes);
            bytes.into()
        }
        RowValues::Host(EitherFloat::F32(values)) => bytemuck::cast_slice(values).into(),
        RowValues::Host(EitherFloat::F64(values)) => bytemuck::cast_slice(values).into(),
        RowValues::Device(_) => Cow::Borrowed(&[]),
    }
}

struct Reader<'a> {
    record: &'a [u8],
    rest: &'a [u8],
    /// The type in which `f32` is sent.
    wire: Wire,
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: Option<usize>) -> Result<&'a [u8], Error> {
        let taken = len.and_then(|len| self.rest.split_off(..len));
        taken.ok_or_else(|| self.error("rows of a gradient that end too early"))
    }

    fn words(&mut self, count: usize) -> Result<Vec<u64>, Error> {
        let bytes = self.take(count.checked_mul(WORD))?;
        let word = |word: &[u8; WORD]| u64::from_le_bytes(*word);
        Ok(bytes.as_chunks().0.iter().map(word).collect())
    }

    fn rows(&mut self, variable: &Var, height: usize, count: u64) -> Result<Rows, Error> {
        let width = row_len(variable);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let rows = self.words(count)?;
        let ascend = rows.windows(2).all(|pair| pair[0] < pair[1]);
        if !ascend || rows.last().is_some_and(|last| *last >= height as u64) {
            return Err(self.error("rows of a gradient that the variable does not have, or in another order"));
        }
        let rows = rows.into_iter().map(|row| row as usize).collect();
        let of_count = |count: usize| match variable.dtype() {
            DType::F32 => count.checked_mul(size_of::<f32>()).map(|bytes| self.wire.len(bytes)),
            dtype => count.checked_mul(dtype.size_in_bytes()),
        };
        let size = count.checked_mul(width).and_then(of_count);
        let values = self.take(size.and_then(|size| size.checked_next_multiple_of(WORD)))?;
        let values = &values[..size.unwrap_or(0)];
        let values = match variable.dtype() {
            DType::F32 if self.wire == Wire::Full => EitherFloat::F32(numbers(values).into_owned()),
            DType::F32 => {
                let mut all = vec![0.; count * width];
                self.wire.decode(values, &mut all);
                EitherFloat::F32(all)
            }
            _ => EitherFloat::F64(numbers(values).into_owned()),
        };
        Ok(Rows::new(rows, values))
    }

    fn error(&self, what: &'static str) -> Error {
        Error::Bytes { operation: "minimize", offset: self.record.len() - self.rest.len(), what }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;
    use distribute_collective::group::local;
    use proptest::prelude::*;

    fn variables() -> [Var; 3] {
        let of = |shape: (usize, usize), dtype| Var::zeros(shape, dtype, &Device::Cpu).unwrap();
        [of((5, 3), DType::F32), of((4, 2), DType::F64), of((9, 1), DType::F32)]
    }

    fn with_heights(variables: &[Var]) -> Vec<(&Var, usize)> {
        variables.iter().map(|variable| (variable, variable.dims()[0])).collect()
    }

    fn gradients() -> Vec<Vec<Option<ReplicaGradient>>> {
        let rows = |rows: &[usize], values| Some(ReplicaGradient::Rows(Rows::new(rows.to_vec(), values)));
        let first = vec![rows(&[0, 4], EitherFloat::F32((0..6).map(|i| i as f32).collect())), None, None];
        let second = vec![
            rows(&[], EitherFloat::F32(Vec::new())),
            rows(&[1, 2, 3], EitherFloat::F64(vec![-0.5; 6])),
            rows(&[8], EitherFloat::F32(vec![7.])),
        ];
        vec![first, second]
    }

    fn record(variables: &[usize], wire: Wire) -> Bytes {
        let group = local::groups(Default::default(), 1, 1).unwrap().remove(0);
        let gradients = gradients();
        encode(&gradients.iter().map(Vec::as_slice).collect::<Vec<_>>(), variables, wire, group.buffers())
    }

    #[test]
    fn row_records_round_trip() {
        let all = variables();
        let sent = gradients();
        let sent = sent
            .iter()
            .map(|of_replica| of_replica.iter().map(|gradient| rows(gradient).cloned()).collect::<Vec<_>>());
        let sent = format!("{:?}", sent.collect::<Vec<_>>());
        for wire in Wire::ALL {
            let read = decode(&record(&[0, 1, 2], wire), 2, &with_heights(&all), wire).unwrap();
            // These numbers have few bits.
            assert_eq!(format!("{read:?}"), sent, "{wire}");
            let read = decode(&record(&[2, 1], wire), 2, &[(&all[2], 9), (&all[1], 4)], wire).unwrap();
            assert_eq!(read[1][0].as_ref().unwrap().rows, [8]);
        }
        let other = |wire| decode(&record(&[0], Wire::Bf16), 2, &with_heights(&all[..1]), wire);
        assert!(other(Wire::Bf16).is_ok() && other(Wire::Full).is_err());
    }

    #[test]
    fn records_that_do_not_match_the_variables_are_refused() {
        let all = variables();
        let all = with_heights(&all);
        let wire = Wire::Full;
        let record = record(&[0, 1, 2], wire);
        for len in 0..record.len() {
            assert!(decode(&record[..len], 2, &all, wire).is_err(), "{len} bytes");
        }
        assert!(decode(&[&record[..], &[0; 8]].concat(), 2, &all, wire).is_err());
        assert!(decode(&record, 1, &all, wire).is_err() && decode(&record, 2, &all[..2], wire).is_err());
        let word = |at: usize, value: u64| {
            let mut changed = record.to_vec();
            changed[8 * at..8 * at + 8].copy_from_slice(&value.to_le_bytes());
            decode(&changed, 2, &all, wire)
        };
        // The rows 0 and 4 of the first variable follow six numbers of rows.
        assert!(word(6, 3).is_ok());
        for (at, value) in [(6, 4), (6, 5), (7, 5), (0, 1 << 61), (0, u64::MAX - 1)] {
            assert!(word(at, value).is_err(), "word {at} is {value}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_rows_of_the_variables(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let all = variables();
            if let Ok(read) = decode(&bytes, 1, &with_heights(&all[..2]), Wire::ALL[bytes.len() % 3]) {
                for (rows, variable) in read[0].iter().zip(&all).filter_map(|(rows, all)| Some((rows.as_ref()?, all))) {
                    prop_assert!(rows.rows.iter().all(|row| *row < variable.dims()[0]));
                }
            }
        }
    }
}
