//! Rows of gradients as they are sent to other workers.
//!
//! For each replica and variable the number of rows, or [`NONE`]; then, for each that has some, the numbers of the rows and
//! their values, each filled up to 8 bytes.

use super::Trained;
use super::conversion::row_len;
use crate::deposit::{LocalGradient, Rows};
use crate::number::{Any, Elements};
use bytes::Bytes;
use candle_core::{DType, Var};
use distribute_collective::group::{Buffers, numbers};
use distribute_tensor::Error;

/// Instead of a number of rows: the replica has no gradient of the variable.
const NONE: u64 = u64::MAX;

const WORD: usize = size_of::<u64>();

/// The rows that replicas have of some variables, which have rows or nothing on all replicas.
pub(super) fn encode(
    gradients: &[&[Option<LocalGradient>]],
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

/// The rows of so many replicas: for each one those of each variable.
///
/// # Errors
/// If these bytes are not those of rows of these variables.
pub(super) fn decode(
    record: &[u8],
    replicas: usize,
    variables: &[usize],
    trained: &Trained,
) -> Result<Vec<Vec<Option<Rows>>>, Error> {
    let variables: Vec<&Var> = variables.iter().map(|number| &trained.variables[*number].1).collect();
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
fn rows(gradient: &Option<LocalGradient>) -> Option<&Rows> {
    match gradient {
        Some(LocalGradient::Rows(rows)) => Some(rows),
        _ => None,
    }
}

fn bytes(values: &Elements) -> &[u8] {
    match values {
        Any::F32(values) => bytemuck::cast_slice(values),
        Any::F64(values) => bytemuck::cast_slice(values),
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
        Ok(Rows { rows, values })
    }

    fn error(&self, what: &'static str) -> Error {
        Error::Bytes { operation: "minimize", offset: self.record.len() - self.rest.len(), what }
    }
}
