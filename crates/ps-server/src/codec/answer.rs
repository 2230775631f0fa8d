//! The encoding of a server's responses as messages.

use super::request::StateHead;
use super::tensor::{Body, Malformed, Rest, TensorHead};
use super::{MAX_REQUESTS, VERSION, put_head, take_head};
use distribute_cluster::bounded::Budget;
use distribute_net::{Message, Region};
use distribute_ps_tables::{
    ChangedRows, LogPosition, PushResult, Refusal, Response, TableInfo, Usage, Version, VersionedValue,
};
use distribute_tensor::{HostTensor, Wire};
use serde::{Deserialize, Serialize};

/// A response without the contents of its tensors, as it is encoded in a head.
#[derive(Debug, Serialize, Deserialize)]
enum AnswerHead {
    Refused(Refusal),
    Done,
    Created {
        new: bool,
    },
    Tables(Vec<TableInfo>),
    Value {
        version: Version,
        value: TensorHead,
    },
    Unchanged,
    Rows(TensorHead),
    Pushed(PushResult),
    State(StateHead),
    Restored {
        left_out: usize,
    },
    Evicted(usize),
    Job {
        newest: u64,
    },
    Usage(Usage),
    Changed {
        position: LogPosition,
        complete: bool,
        rows: TensorHead,
        numbers: TensorHead,
        values: TensorHead,
    },
}

/// Encodes the responses to the requests of a call. `batch` is whether the call is a batch; otherwise there is one
/// response. `memory` returns a region of the given length that the client can read, or `None`. `wires` contains the
/// type in which the tensors of each response are sent; responses without a type there are sent unchanged.
pub(crate) fn encode_answer(
    answers: Vec<Result<Response, Refusal>>,
    batch: bool,
    wires: &[Wire],
    memory: impl FnOnce(usize) -> Option<Region>,
) -> Result<Message, Malformed> {
    let (mut head, mut body) = (put_head(&batch, vec![VERSION])?, Body::default());
    for (answer, wire) in answers.into_iter().zip(wires.iter().copied().chain(std::iter::repeat(Wire::Full)))
    {
        let one = match answer {
            Err(refusal) => AnswerHead::Refused(refusal),
            Ok(Response::Done) => AnswerHead::Done,
            Ok(Response::Created { new }) => AnswerHead::Created { new },
            Ok(Response::Tables(tables)) => AnswerHead::Tables(tables),
            Ok(Response::Value(VersionedValue { version, value })) => {
                AnswerHead::Value { version, value: body.put(value, wire)? }
            }
            Ok(Response::Unchanged) => AnswerHead::Unchanged,
            Ok(Response::Rows(rows)) => AnswerHead::Rows(body.put(rows, wire)?),
            Ok(Response::Pushed(pushed)) => AnswerHead::Pushed(pushed),
            Ok(Response::State(state)) => AnswerHead::State(StateHead::of(state, &mut body)?),
            Ok(Response::Restored { left_out }) => AnswerHead::Restored { left_out },
            Ok(Response::Evicted(rows)) => AnswerHead::Evicted(rows),
            Ok(Response::Job { newest }) => AnswerHead::Job { newest },
            Ok(Response::Usage(usage)) => AnswerHead::Usage(usage),
            Ok(Response::Changed(changed)) => {
                let ChangedRows { position, complete, rows, numbers, values } = changed;
                let mut put = |tensor| body.put(tensor, Wire::Full);
                let (rows, numbers) = (put(HostTensor::vector(rows))?, put(HostTensor::vector(numbers))?);
                AnswerHead::Changed { position, complete, rows, numbers, values: put(values)? }
            }
            Ok(Response::Batch(_)) => return Err(Malformed("a batch in a batch")),
            Ok(_) => return Err(Malformed("an answer that this version does not know")),
        };
        head = put_head(&one, head)?;
    }
    Ok(Message::new(head, body.finish_in(memory)))
}

pub(crate) fn decode_answer(message: Message) -> Result<Result<Response, Refusal>, Malformed> {
    let Message { head, body } = message;
    let Some((&VERSION, rest)) = head.split_first() else {
        return Err(Malformed("another version than that of this client"));
    };
    // An entry of a list of tables takes about ten times as much memory as its encoding.
    let budget = Budget::of(head.len().saturating_mul(8));
    let (batch, mut heads): (bool, _) = take_head(rest, &budget)?;
    let (mut answers, mut body) = (Vec::new(), Rest(body));
    while !heads.is_empty() {
        if answers.len() >= MAX_REQUESTS {
            return Err(Malformed("too many answers"));
        }
        let (answer, rest) = take_head(heads, &budget)?;
        heads = rest;
        answers.push(match answer {
            AnswerHead::Refused(refusal) => Err(refusal),
            AnswerHead::Done => Ok(Response::Done),
            AnswerHead::Created { new } => Ok(Response::Created { new }),
            AnswerHead::Tables(tables) => Ok(Response::Tables(tables)),
            AnswerHead::Value { version, value } => {
                Ok(Response::Value(VersionedValue { version, value: body.take(value)? }))
            }
            AnswerHead::Unchanged => Ok(Response::Unchanged),
            AnswerHead::Rows(rows) => Ok(Response::Rows(body.take(rows)?)),
            AnswerHead::Pushed(pushed) => Ok(Response::Pushed(pushed)),
            AnswerHead::State(state) => Ok(Response::State(state.take(&mut body)?)),
            AnswerHead::Restored { left_out } => Ok(Response::Restored { left_out }),
            AnswerHead::Evicted(rows) => Ok(Response::Evicted(rows)),
            AnswerHead::Job { newest } => Ok(Response::Job { newest }),
            AnswerHead::Usage(usage) => Ok(Response::Usage(usage)),
            AnswerHead::Changed { position, complete, rows, numbers, values } => {
                let (rows, numbers) = (body.ids(rows)?, body.numbers(numbers)?);
                let values = body.take(values)?;
                Ok(Response::Changed(ChangedRows { position, complete, rows, numbers, values }))
            }
        });
    }
    if !body.0.is_empty() {
        return Err(Malformed("more in its body than its heads announce"));
    }
    match (batch, answers.pop()) {
        (true, last) => {
            answers.extend(last);
            Ok(Ok(Response::Batch(answers)))
        }
        (false, Some(one)) if answers.is_empty() => Ok(one),
        (false, _) => Err(Malformed("several answers, but is not a batch")),
    }
}
