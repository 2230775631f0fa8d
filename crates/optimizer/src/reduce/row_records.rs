//! Rows of gradients as they are sent to other workers.
//!
//! For each replica and variable the number of rows, or [`NONE`]; then, for each that has some, the numbers of the rows
//! and their values, each filled up to 8 bytes.

use crate::gradients::row_len;
use bytes::Bytes;
use candle_core::{DType, Var};
use distribute_base::internal::{Any, ReplicaGradient, RowValues, Rows};
use distribute_collective::group::{Buffers, numbers};
use distribute_tensor::Error;

/// Instead of a number of rows: the replica has no gradient of the variable.
const NONE: u64 = u64::MAX;

const WORD: usize = size_of::<u64>();

/// The rows that replicas have of some variables, which have rows or nothing on all replicas.
pub(crate) fn encode(
    gradients: &[&[Option<ReplicaGradient>]],
    variables: &[usize],
    buffers: &Buffers,
) -> Bytes {
    let all =
        || gradients.iter().flat_map(|of_replica| variables.iter().map(|number| rows(&of_replica[*number])));
    let size: usize = all()
        .map(|rows| {
            WORD + rows
                .map_or(0, |rows| rows.rows.len() * WORD + bytes(&rows.values).len().next_multiple_of(WORD))
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
        let values = bytes(&rows.values);
        put(values);
        put(&[0; WORD][..values.len().next_multiple_of(WORD) - values.len()]);
    }
    buffer.freeze()
}

/// Decodes the rows of this number of replicas: for each replica those of each variable.
///
/// # Errors
/// If these bytes are not those of rows of these variables.
pub(crate) fn decode(
    record: &[u8],
    replicas: usize,
    variables: &[&Var],
) -> Result<Vec<Vec<Option<Rows>>>, Error> {
    let mut reader = Reader { record, rest: record };
    let counts = reader.words(replicas.saturating_mul(variables.len()))?;
    let mut counts = counts.into_iter();
    let mut all = Vec::with_capacity(replicas);
    for _ in 0..replicas {
        let of = |(variable, count): (&&Var, u64)| match count {
            NONE => Ok(None),
            count => reader.rows(variable, count).map(Some),
        };
        all.push(variables.iter().zip(&mut counts).map(of).collect::<Result<Vec<_>, _>>()?);
    }
    if reader.rest.is_empty() { Ok(all) } else { Err(reader.error("more than the rows of a gradient")) }
}

/// The rows of a gradient, if it has some.
fn rows(gradient: &Option<ReplicaGradient>) -> Option<&Rows> {
    match gradient {
        Some(ReplicaGradient::Rows(rows)) => Some(rows),
        _ => None,
    }
}

fn bytes(values: &RowValues) -> &[u8] {
    match values {
        RowValues::Host(Any::F32(values)) => bytemuck::cast_slice(values),
        RowValues::Host(Any::F64(values)) => bytemuck::cast_slice(values),
        RowValues::Device(_) => &[],
    }
}

struct Reader<'a> {
    record: &'a [u8],
    rest: &'a [u8],
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

    fn rows(&mut self, variable: &Var, count: u64) -> Result<Rows, Error> {
        let (height, width) = (variable.dims().first().copied().unwrap_or(0), row_len(variable));
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let rows = self.words(count)?;
        let ascend = rows.windows(2).all(|pair| pair[0] < pair[1]);
        if !ascend || rows.last().is_some_and(|last| *last >= height as u64) {
            return Err(self.error("rows of a gradient that the variable does not have, or in another order"));
        }
        let rows = rows.into_iter().map(|row| row as usize).collect();
        let size =
            count.checked_mul(width).and_then(|count| count.checked_mul(variable.dtype().size_in_bytes()));
        let values = self.take(size.and_then(|size| size.checked_next_multiple_of(WORD)))?;
        let values = &values[..size.unwrap_or(0)];
        let values = match variable.dtype() {
            DType::F32 => Any::F32(numbers(values).into_owned()),
            _ => Any::F64(numbers(values).into_owned()),
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

    fn gradients() -> Vec<Vec<Option<ReplicaGradient>>> {
        let rows = |rows: &[usize], values| Some(ReplicaGradient::Rows(Rows::new(rows.to_vec(), values)));
        let first = vec![rows(&[0, 4], Any::F32((0..6).map(|i| i as f32).collect())), None, None];
        let second = vec![
            rows(&[], Any::F32(Vec::new())),
            rows(&[1, 2, 3], Any::F64(vec![-0.5; 6])),
            rows(&[8], Any::F32(vec![7.])),
        ];
        vec![first, second]
    }

    fn record(variables: &[usize]) -> Bytes {
        let group = local::groups(Default::default(), 1, 1).unwrap().remove(0);
        let gradients = gradients();
        encode(&gradients.iter().map(Vec::as_slice).collect::<Vec<_>>(), variables, group.buffers())
    }

    #[test]
    fn what_is_sent_is_what_is_read() {
        let all = variables();
        let read = decode(&record(&[0, 1, 2]), 2, &all.iter().collect::<Vec<_>>()).unwrap();
        let sent = gradients();
        let sent = sent
            .iter()
            .map(|of_replica| of_replica.iter().map(|gradient| rows(gradient).cloned()).collect::<Vec<_>>());
        assert_eq!(format!("{read:?}"), format!("{:?}", sent.collect::<Vec<_>>()));
        let read = decode(&record(&[2, 1]), 2, &[&all[2], &all[1]]).unwrap();
        assert_eq!(read[1][0].as_ref().unwrap().rows, [8]);
    }

    #[test]
    fn what_does_not_fit_the_variables_is_refused() {
        let all = variables();
        let all: Vec<&Var> = all.iter().collect();
        let record = record(&[0, 1, 2]);
        for len in 0..record.len() {
            assert!(decode(&record[..len], 2, &all).is_err(), "{len} bytes");
        }
        assert!(decode(&[&record[..], &[0; 8]].concat(), 2, &all).is_err());
        assert!(decode(&record, 1, &all).is_err() && decode(&record, 2, &all[..2]).is_err());
        let word = |at: usize, value: u64| {
            let mut changed = record.to_vec();
            changed[8 * at..8 * at + 8].copy_from_slice(&value.to_le_bytes());
            decode(&changed, 2, &all)
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
            if let Ok(read) = decode(&bytes, 1, &[&all[0], &all[1]]) {
                for (rows, variable) in read[0].iter().zip(&all).filter_map(|(rows, all)| Some((rows.as_ref()?, all))) {
                    prop_assert!(rows.rows.iter().all(|row| *row < variable.dims()[0]));
                }
            }
        }
    }
}
