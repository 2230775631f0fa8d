//! The encoding of a request as a head and a body.

use super::tensor::{Body, Malformed, Rest, TensorHead, code, dims, dtype};
use super::{put_head, take_head};
use distribute_cluster::bounded::Budget;
use distribute_optim::{RuleSpec, Step, StochasticRounding};
use distribute_ps_tables::{
    Contents, DynamicOptions, DynamicState, Initializer, LogPosition, Origin, Push, Request, RowPartition,
    State, StateColumn, TableSpec, Version,
};
use distribute_tensor::{HostTensor, Wire, Write};
use serde::{Deserialize, Serialize};

/// The operations of writes. The index of an operation is its code.
const WRITES: [Write; 7] =
    [Write::Assign, Write::Add, Write::Sub, Write::Mul, Write::Div, Write::Min, Write::Max];

/// A request without the contents of its tensors, as it is encoded in a head.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum RequestHead {
    Create {
        name: String,
        contents: ContentsHead,
        rule: Option<RuleSpec>,
    },
    Remove {
        table: String,
    },
    List,
    SetRule {
        table: String,
        rule: RuleSpec,
    },
    Read {
        table: String,
        known: Option<Version>,
        may_round: bool,
    },
    ReadRows {
        table: String,
        rows: TensorHead,
    },
    Write {
        table: String,
        how: u8,
        value: TensorHead,
    },
    WriteRows {
        table: String,
        how: u8,
        rows: TensorHead,
        values: TensorHead,
    },
    Push {
        table: String,
        push: PushHead,
        gradient: TensorHead,
    },
    PushRows {
        table: String,
        push: PushHead,
        rows: TensorHead,
        gradient: TensorHead,
    },
    StateRows {
        table: String,
        start: usize,
        end: usize,
    },
    StatePart {
        table: String,
        part: usize,
    },
    Restore {
        table: String,
        state: StateHead,
    },
    Evict {
        table: String,
        now: u64,
    },
    Keep {
        table: String,
        first: i64,
        last: i64,
        ids: TensorHead,
    },
    /// A change by a closure. The head of the change follows this one. If it were nested, untrusted bytes could nest
    /// heads to any depth.
    Once {
        origin: Origin,
        number: u64,
    },
    BeginJob {
        job: u64,
    },
    Usage,
    Changed {
        table: String,
        since: Option<LogPosition>,
    },
    /// Creates a table whose values are stored in bf16.
    CreateRounded {
        name: String,
        contents: ContentsHead,
        rule: Option<RuleSpec>,
        rounding: StochasticRounding,
    },
    StateColumn {
        table: String,
        part: usize,
        column: StateColumn,
    },
}

/// Appends the head of a request to `heads`, and the request's tensors to `body`. The request must not be a batch,
/// whose requests are appended one by one.
pub(super) fn put_request(
    request: Request,
    wire: Wire,
    body: &mut Body,
    heads: Vec<u8>,
) -> Result<Vec<u8>, Malformed> {
    match request {
        Request::Once { origin, number, change } => {
            let heads = put_head(&RequestHead::Once { origin, number }, heads)?;
            put_head(&RequestHead::of(*change, wire, body)?, heads)
        }
        request => put_head(&RequestHead::of(request, wire, body)?, heads),
    }
}

/// Decodes the next request, and returns it with the remaining bytes of `heads`.
pub(super) fn take_request<'a>(
    heads: &'a [u8],
    body: &mut Rest,
    budget: &Budget,
) -> Result<(Request, &'a [u8]), Malformed> {
    let (head, heads): (RequestHead, _) = take_head(heads, budget)?;
    let RequestHead::Once { origin, number } = head else { return Ok((head.take(body)?, heads)) };
    let (change, heads): (RequestHead, _) = take_head(heads, budget)?;
    let request = Request::Once { origin, number, change: Box::new(change.take(body)?) };
    match request.check() {
        Ok(()) => Ok((request, heads)),
        Err(_) => Err(Malformed("something that cannot be executed exactly once")),
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ContentsHead {
    Values(TensorHead),
    Initialized {
        #[serde(deserialize_with = "dims")]
        shape: Vec<usize>,
        dtype: u8,
        initializer: Initializer,
        partition: RowPartition,
        shard: usize,
    },
    Dynamic {
        #[serde(deserialize_with = "dims")]
        row_shape: Vec<usize>,
        dtype: u8,
        initializer: Initializer,
        options: DynamicOptions,
    },
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PushHead {
    number: u64,
    learning_rate: f64,
    finite: bool,
    counted: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum StateHead {
    Rows { first: usize, values: TensorHead, slots: Vec<(String, TensorHead)> },
    Ids { ids: TensorHead, used: TensorHead, values: TensorHead, slots: Vec<(String, TensorHead)> },
    Slots { first: usize, slots: Vec<(String, TensorHead)> },
    IdSlots { ids: TensorHead, slots: Vec<(String, TensorHead)> },
    IdValues { ids: TensorHead, used: TensorHead, values: TensorHead },
}

impl RequestHead {
    /// Returns the head of a single request, and appends the request's tensors to `body`.
    fn of(request: Request, wire: Wire, body: &mut Body) -> Result<Self, Malformed> {
        let how = |how: Write| WRITES.iter().position(|one| *one == how).unwrap_or_default() as u8;
        let push = |push: Push| {
            let (step, finite, counted) = (push.step(), push.is_finite(), push.is_counted());
            PushHead { number: step.number(), learning_rate: step.learning_rate(), finite, counted }
        };
        Ok(match request {
            Request::Create(TableSpec { name, contents, rule, rounding }) => {
                let contents = ContentsHead::of(contents, body)?;
                match rounding {
                    None => Self::Create { name, contents, rule },
                    Some(rounding) => Self::CreateRounded { name, contents, rule, rounding },
                }
            }
            Request::Remove { table } => Self::Remove { table },
            Request::List => Self::List,
            Request::SetRule { table, rule } => Self::SetRule { table, rule },
            Request::Read { table, known, may_round } => Self::Read { table, known, may_round },
            Request::ReadRows { table, rows } => {
                Self::ReadRows { table, rows: body.put(HostTensor::vector(rows), Wire::Full)? }
            }
            Request::Write { table, how: w, value } => {
                Self::Write { table, how: how(w), value: body.put(value, Wire::Full)? }
            }
            Request::WriteRows { table, how: w, rows, values } => {
                let rows = body.put(HostTensor::vector(rows), Wire::Full)?;
                Self::WriteRows { table, how: how(w), rows, values: body.put(values, Wire::Full)? }
            }
            Request::Push { table, push: p, gradient } => {
                Self::Push { table, push: push(p), gradient: body.put(gradient, wire)? }
            }
            Request::PushRows { table, push: p, rows, gradient } => {
                let rows = body.put(HostTensor::vector(rows), Wire::Full)?;
                Self::PushRows { table, push: push(p), rows, gradient: body.put(gradient, wire)? }
            }
            Request::StateRows { table, rows } => Self::StateRows { table, start: rows.start, end: rows.end },
            Request::StatePart { table, part } => Self::StatePart { table, part },
            Request::StateColumn { table, part, column } => Self::StateColumn { table, part, column },
            Request::Restore { table, state } => Self::Restore { table, state: StateHead::of(state, body)? },
            Request::Evict { table, now } => Self::Evict { table, now },
            Request::Keep { table, between: (first, last), ids } => {
                Self::Keep { table, first, last, ids: body.put(HostTensor::vector(ids), Wire::Full)? }
            }
            Request::BeginJob { job } => Self::BeginJob { job },
            Request::Usage => Self::Usage,
            Request::Changed { table, since } => Self::Changed { table, since },
            Request::Once { .. } => return Err(Malformed("something that cannot be executed exactly once")),
            Request::Batch(_) => return Err(Malformed("a batch in a batch")),
            _ => return Err(Malformed("a request that this version does not know")),
        })
    }

    /// Decodes the request with this head, and takes its tensors from the body.
    fn take(self, body: &mut Rest) -> Result<Request, Malformed> {
        let how = |code: u8| WRITES.get(usize::from(code)).copied().ok_or(Malformed("no such way to write"));
        let push = |PushHead { number, learning_rate, finite, counted }| {
            let push = Push::at(Step::after(u64::saturating_sub(number, 1), learning_rate));
            let push = if finite { push.finite() } else { push };
            if counted { push.counted() } else { push }
        };
        Ok(match self {
            Self::Create { name, contents, rule } => {
                Request::Create(TableSpec { name, contents: contents.take(body)?, rule, rounding: None })
            }
            Self::CreateRounded { name, contents, rule, rounding } => {
                let contents = contents.take(body)?;
                Request::Create(TableSpec { name, contents, rule, rounding: Some(rounding) })
            }
            Self::Remove { table } => Request::Remove { table },
            Self::List => Request::List,
            Self::SetRule { table, rule } => Request::SetRule { table, rule },
            Self::Read { table, known, may_round } => Request::Read { table, known, may_round },
            Self::ReadRows { table, rows } => Request::ReadRows { table, rows: body.ids(rows)? },
            Self::Write { table, how: w, value } => {
                Request::Write { table, how: how(w)?, value: body.take(value)? }
            }
            Self::WriteRows { table, how: w, rows, values } => {
                let rows = body.ids(rows)?;
                Request::WriteRows { table, how: how(w)?, rows, values: body.take(values)? }
            }
            Self::Push { table, push: p, gradient } => {
                Request::Push { table, push: push(p), gradient: body.take(gradient)? }
            }
            Self::PushRows { table, push: p, rows, gradient } => {
                let rows = body.ids(rows)?;
                Request::PushRows { table, push: push(p), rows, gradient: body.take(gradient)? }
            }
            Self::StateRows { table, start, end } => Request::StateRows { table, rows: start..end },
            Self::StatePart { table, part } => Request::StatePart { table, part },
            Self::StateColumn { table, part, column } => Request::StateColumn { table, part, column },
            Self::Restore { table, state } => Request::Restore { table, state: state.take(body)? },
            Self::Evict { table, now } => Request::Evict { table, now },
            Self::Keep { table, first, last, ids } => {
                Request::Keep { table, between: (first, last), ids: body.ids(ids)? }
            }
            Self::BeginJob { job } => Request::BeginJob { job },
            Self::Usage => Request::Usage,
            Self::Changed { table, since } => Request::Changed { table, since },
            Self::Once { .. } => return Err(Malformed("something that cannot be executed exactly once")),
        })
    }
}

impl ContentsHead {
    fn of(contents: Contents, body: &mut Body) -> Result<Self, Malformed> {
        Ok(match contents {
            Contents::Values(values) => Self::Values(body.put(values, Wire::Full)?),
            Contents::Initialized { shape, dtype, initializer, partition, shard } => {
                Self::Initialized { shape, dtype: code(dtype), initializer, partition, shard }
            }
            Contents::Dynamic { row_shape, dtype, initializer, options } => {
                Self::Dynamic { row_shape, dtype: code(dtype), initializer, options }
            }
        })
    }

    fn take(self, body: &mut Rest) -> Result<Contents, Malformed> {
        Ok(match self {
            Self::Values(values) => Contents::Values(body.take(values)?),
            Self::Initialized { shape, dtype: code, initializer, partition, shard } => {
                Contents::Initialized { shape, dtype: dtype(code)?, initializer, partition, shard }
            }
            Self::Dynamic { row_shape, dtype: code, initializer, options } => {
                Contents::Dynamic { row_shape, dtype: dtype(code)?, initializer, options }
            }
        })
    }
}

impl StateHead {
    pub fn of(state: State, body: &mut Body) -> Result<Self, Malformed> {
        fn put(
            slots: Vec<(String, HostTensor)>,
            body: &mut Body,
        ) -> Result<Vec<(String, TensorHead)>, Malformed> {
            slots.into_iter().map(|(name, slot)| Ok((name, body.put(slot, Wire::Full)?))).collect()
        }
        Ok(match state {
            State::Rows { first, values, slots } => {
                Self::Rows { first, values: body.put(values, Wire::Full)?, slots: put(slots, body)? }
            }
            State::Ids(DynamicState { ids, used, values, slots }) => Self::Ids {
                ids: body.put(HostTensor::vector(ids), Wire::Full)?,
                used: body.put(HostTensor::vector(used), Wire::Full)?,
                values: body.put(values, Wire::Full)?,
                slots: put(slots, body)?,
            },
            State::Slots { first, slots } => Self::Slots { first, slots: put(slots, body)? },
            State::IdSlots { ids, slots } => Self::IdSlots {
                ids: body.put(HostTensor::vector(ids), Wire::Full)?,
                slots: put(slots, body)?,
            },
            State::IdValues { ids, used, values } => Self::IdValues {
                ids: body.put(HostTensor::vector(ids), Wire::Full)?,
                used: body.put(HostTensor::vector(used), Wire::Full)?,
                values: body.put(values, Wire::Full)?,
            },
            _ => return Err(Malformed("a state that this version does not know")),
        })
    }

    pub fn take(self, body: &mut Rest) -> Result<State, Malformed> {
        fn take(
            slots: Vec<(String, TensorHead)>,
            body: &mut Rest,
        ) -> Result<Vec<(String, HostTensor)>, Malformed> {
            slots.into_iter().map(|(name, slot)| Ok((name, body.take(slot)?))).collect()
        }
        Ok(match self {
            Self::Rows { first, values, slots } => {
                let values = body.take(values)?;
                State::Rows { first, values, slots: take(slots, body)? }
            }
            Self::Ids { ids, used, values, slots } => {
                let (ids, used) = (body.ids(ids)?, body.numbers(used)?);
                let values = body.take(values)?;
                State::Ids(DynamicState { ids, used, values, slots: take(slots, body)? })
            }
            Self::Slots { first, slots } => State::Slots { first, slots: take(slots, body)? },
            Self::IdSlots { ids, slots } => {
                let ids = body.ids(ids)?;
                State::IdSlots { ids, slots: take(slots, body)? }
            }
            Self::IdValues { ids, used, values } => {
                let (ids, used) = (body.ids(ids)?, body.numbers(used)?);
                State::IdValues { ids, used, values: body.take(values)? }
            }
        })
    }
}
