//! [`OwnIds`]: the rows of a variable of ids that this worker adds to a checkpoint.

use super::dynamic::Dynamic;
use distribute_base::internal::lock;
use distribute_base::{Error, Result};
use distribute_ps_tables::{DynamicState, Request, Response, State, StateColumn};
use distribute_tensor::HostTensor;
use std::ops::Range;
use std::sync::Mutex;

/// The rows of a [`Dynamic`] variable whose changes this worker sends, in the order of the parts of its tables. At most
/// one column of one part is in memory. The rows must not change while this exists.
#[derive(Debug)]
pub struct OwnIds {
    dynamic: Dynamic,
    parts: Vec<OwnPart>,
    /// The column that was read last, of the part with this index in `parts`.
    last: Mutex<Option<(usize, StateColumn, HostTensor)>>,
}

/// A part of a table.
#[derive(Debug)]
struct OwnPart {
    shard: usize,
    part: usize,
    /// The approximate number of rows of a part of this table.
    estimate: usize,
    /// The rows of the part among all of this worker.
    rows: Range<usize>,
}

impl OwnIds {
    /// Reads the ids of this worker, without values and slots. Returns the rows, and for each of them the id and its
    /// [uses](DynamicState::used).
    ///
    /// # Errors
    /// Returns the errors of [`Dynamic::rows`].
    pub fn read(dynamic: &Dynamic, operation: &'static str) -> Result<(Self, Vec<i64>, Vec<u64>)> {
        let infos = dynamic.infos(operation)?;
        // Vectors that grow would be twice as large.
        let count =
            dynamic.tables().own_shards().map(|shard| infos[shard].rows).fold(0, usize::saturating_add);
        let (mut ids, mut used) = (Vec::new(), Vec::new());
        // If this fails, they grow nevertheless, as far as there are rows.
        let _ = ids.try_reserve_exact(count).and_then(|()| used.try_reserve_exact(count));
        let mut own = Self { dynamic: dynamic.clone(), parts: Vec::new(), last: Mutex::default() };
        for shard in dynamic.tables().own_shards() {
            let estimate = infos[shard].rows / infos[shard].parts.max(1);
            for part in 0..infos[shard].parts {
                let start = ids.len();
                let mut of_part = OwnPart { shard, part, estimate, rows: start..start };
                let mut state = own.ask(operation, &of_part, StateColumn::Uses)?;
                ids.append(&mut state.ids);
                used.append(&mut state.used);
                of_part.rows.end = ids.len();
                own.parts.push(of_part);
            }
        }
        Ok((own, ids, used))
    }

    /// Reads a range of these rows: the slots `slot`, or the values.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: the rows have changed.
    /// - [`Error::Server`]: a server did not answer, or has no such slot.
    pub fn rows(
        &self,
        operation: &'static str,
        rows: Range<usize>,
        slot: Option<&str>,
    ) -> Result<HostTensor> {
        let column = slot.map_or(StateColumn::Values, |slot| StateColumn::Slot(slot.to_owned()));
        let mut found = Vec::new();
        for (index, part) in self.parts.iter().enumerate() {
            let some = rows.start.max(part.rows.start)..rows.end.min(part.rows.end);
            if some.is_empty() {
                continue;
            }
            let mut last = lock(&self.last);
            let read = match last.take() {
                Some((at, of, read)) if at == index && of == column => read,
                _ => self.column(operation, part, &column)?,
            };
            found.push(read.narrow(0, some.start - part.rows.start, some.len())?);
            *last = Some((index, column.clone(), read));
        }
        Ok(HostTensor::concat(&found.iter().collect::<Vec<_>>(), 0)?)
    }

    fn column(&self, operation: &'static str, part: &OwnPart, column: &StateColumn) -> Result<HostTensor> {
        let mut state = self.ask(operation, part, column.clone())?;
        if state.ids.len() != part.rows.len() {
            return Err(self.wrong(operation, "rows have changed while they were saved"));
        }
        match column {
            StateColumn::Slot(name) => match state.slots.pop() {
                Some((found, slot)) if found == *name => Ok(slot),
                _ => Err(self.wrong(operation, &format!("rows have no slot {name}"))),
            },
            StateColumn::Values | StateColumn::Uses => Ok(state.values),
        }
    }

    fn ask(&self, operation: &'static str, part: &OwnPart, column: StateColumn) -> Result<DynamicState> {
        let &OwnPart { shard, part, estimate, .. } = part;
        let request = |table| Request::StateColumn { table, part, column };
        let ask = self.dynamic.request_to(shard, estimate, request);
        match self.dynamic.tables().channels().ask(operation, vec![ask])?.pop() {
            Some(Response::State(State::Ids(state))) => Ok(state),
            other => Err(self.dynamic.unexpected(operation, shard, &other.unwrap_or(Response::Done))),
        }
    }

    fn wrong(&self, operation: &'static str, what: &str) -> Error {
        Error::invalid(operation, format!("variable {}: {what}", self.dynamic.tables().name()))
    }
}

#[cfg(test)]
mod tests;
