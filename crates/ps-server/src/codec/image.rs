//! The encoding of images of tables and of records of clients, which servers send to each other.

use super::request::StateHead;
use super::tensor::{Body, Malformed, Rest, TensorHead, code, dims, dtype};
use distribute_optim::RuleSpec;
use distribute_ps_tables::{
    ClientPushes, ClosureChanges, DynamicOptions, DynamicState, Halves, ImageContents, Initializer, State,
    TableImage, TableState, WaitingCounts,
};
use distribute_tensor::{HostTensor, Wire};
use serde::{Deserialize, Serialize};

/// An image of a table without the contents of its tensors, as it is encoded in a head.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ImageHead {
    name: String,
    fingerprint: u64,
    described: String,
    rule: Option<RuleSpec>,
    contents: ContentsHead,
    halves: Option<Halves>,
    steps: u64,
    closures: TensorHead,
}

#[derive(Debug, Serialize, Deserialize)]
enum ContentsHead {
    Dense(StateHead),
    Dynamic {
        #[serde(deserialize_with = "dims")]
        row_shape: Vec<usize>,
        dtype: u8,
        initializer: Initializer,
        options: DynamicOptions,
        parts: Vec<(StateHead, [CountsHead; 2])>,
    },
}

/// The counts of ids that have no row: the ids, and the number of occurrences of each.
#[derive(Debug, Serialize, Deserialize)]
struct CountsHead {
    ids: TensorHead,
    counts: TensorHead,
}

impl ImageHead {
    pub fn of(image: TableImage, body: &mut Body) -> Result<Self, Malformed> {
        let TableImage { name, fingerprint, described, rule, contents, halves, steps, closures } = image;
        let contents = match contents {
            ImageContents::Dense(TableState { values, slots, .. }) => {
                ContentsHead::Dense(StateHead::of(State::Rows { first: 0, values, slots }, body)?)
            }
            ImageContents::Dynamic { row_shape, dtype, initializer, options, parts } => {
                let part = |(state, waiting): (DynamicState, WaitingCounts)| {
                    let state = StateHead::of(State::Ids(state), body)?;
                    let [recent, older] = waiting;
                    Ok((state, [CountsHead::of(recent, body)?, CountsHead::of(older, body)?]))
                };
                let parts = parts.into_iter().map(part).collect::<Result<_, _>>()?;
                ContentsHead::Dynamic { row_shape, dtype: code(dtype), initializer, options, parts }
            }
        };
        let closures = body.put(HostTensor::vector(closures.to_numbers()), Wire::Full)?;
        Ok(Self { name, fingerprint, described, rule, contents, halves, steps, closures })
    }

    pub fn take(self, body: &mut Rest) -> Result<TableImage, Malformed> {
        const OTHER: Malformed = Malformed("a table of another kind");
        let Self { name, fingerprint, described, rule, contents, halves, steps, closures } = self;
        let contents = match contents {
            ContentsHead::Dense(state) => match state.take(body)? {
                State::Rows { values, slots, .. } => {
                    ImageContents::Dense(TableState { version: 0, values, slots })
                }
                _ => return Err(OTHER),
            },
            ContentsHead::Dynamic { row_shape, dtype: code, initializer, options, parts } => {
                let part = |(state, [recent, older]): (StateHead, [CountsHead; 2])| {
                    let State::Ids(state) = state.take(body)? else { return Err(OTHER) };
                    Ok((state, [recent.take(body)?, older.take(body)?]))
                };
                let parts = parts.into_iter().map(part).collect::<Result<_, _>>()?;
                ImageContents::Dynamic { row_shape, dtype: dtype(code)?, initializer, options, parts }
            }
        };
        let closures = ClosureChanges::from_numbers(&body.numbers::<u64>(closures)?)
            .ok_or(Malformed("changes of closures that are truncated"))?;
        Ok(TableImage { name, fingerprint, described, rule, contents, halves, steps, closures })
    }
}

impl CountsHead {
    fn of(counts: Vec<(i64, u32)>, body: &mut Body) -> Result<Self, Malformed> {
        let (ids, counts) = counts.into_iter().unzip::<_, _, Vec<i64>, Vec<u32>>();
        let ids = body.put(HostTensor::vector(ids), Wire::Full)?;
        Ok(Self { ids, counts: body.put(HostTensor::vector(counts), Wire::Full)? })
    }

    fn take(self, body: &mut Rest) -> Result<Vec<(i64, u32)>, Malformed> {
        let (ids, counts) = (body.ids(self.ids)?, body.numbers::<u32>(self.counts)?);
        if ids.len() != counts.len() {
            return Err(Malformed("counts of other ids"));
        }
        Ok(ids.into_iter().zip(counts).collect())
    }
}

/// Encodes the records of clients. For each client, there are its id, its highest sequence number, the number of
/// applied changes, and their sequence numbers.
pub(crate) fn put_clients(clients: Vec<ClientPushes>, body: &mut Body) -> Result<TensorHead, Malformed> {
    let mut all: Vec<u64> = Vec::new();
    for ClientPushes { client, highest, applied } in clients {
        all.extend([client, highest, applied.len() as u64]);
        all.extend(applied);
    }
    body.put(HostTensor::vector(all), Wire::Full)
}

pub(crate) fn take_clients(head: TensorHead, body: &mut Rest) -> Result<Vec<ClientPushes>, Malformed> {
    let all = body.numbers::<u64>(head)?;
    let (mut rest, mut clients) = (all.as_slice(), Vec::new());
    while let Some(([client, highest, count], others)) = rest.split_first_chunk::<3>() {
        let count = usize::try_from(*count).ok().filter(|count| *count <= others.len());
        let count = count.ok_or(Malformed("a client whose numbers are truncated"))?;
        let (applied, others) = others.split_at(count);
        clients.push(ClientPushes { client: *client, highest: *highest, applied: applied.to_vec() });
        rest = others;
    }
    if rest.is_empty() { Ok(clients) } else { Err(Malformed("a client that is truncated")) }
}
