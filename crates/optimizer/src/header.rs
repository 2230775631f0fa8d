//! The header of a replica's part of a step: what all replicas must know before any gradient moves.

use crate::Weighting;
use candle_core::DType;
use distribute_base::Error;
use distribute_base::internal::ReplicaGradient;
use distribute_tensor::Error as Unreadable;
use distribute_tensor::ReduceOp;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The header of a replica's part of a step. The decision about the step is a function of the headers of all replicas.
#[derive(Clone, Debug)]
pub(crate) struct StepHeader {
    pub(crate) weighting: Weighting,
    /// The sum over the examples.
    pub(crate) loss: f64,
    /// The dtype of the loss.
    pub(crate) dtype: DType,
    /// The rows of this replica's piece of the batch, where they are known.
    pub(crate) rows: Option<usize>,
    /// Whether the loss is finite, and the gradients if they are checked.
    pub(crate) finite: bool,
    /// The position of the process in its training. The first replica of a process has it, if processes are compared
    /// or the learning rate has a schedule.
    pub(crate) position: Option<Position>,
    /// The kind of gradient of each variable, in the optimizer's order.
    pub(crate) kinds: Vec<GradientKind>,
    /// The early send of the dense gradients to the other workers, if there was one.
    pub(crate) early: Option<EarlyGradients>,
    /// The order in which gradients were complete. The first replica of a process has it, if gradients could have
    /// been sent early and were not.
    pub(crate) order: Option<Vec<u32>>,
}

/// The early send of a replica's dense gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EarlyGradients {
    /// The call that receives them.
    pub(crate) call: u64,
    /// The digest of their layout.
    pub(crate) layout: u64,
}

/// The position of a process in its training: the same on all processes.
#[derive(Clone, Debug)]
pub(crate) struct Position {
    /// The number of steps made with this optimizer.
    pub(crate) finished: u64,
    /// Whether the process's part of the optimizer's state is of another step than the variables.
    pub(crate) incomplete: bool,
    /// The digest of the optimizer's settings, until all workers have compared them.
    pub(crate) settings: Option<u64>,
    /// The learning rate of the next step, or the error of its schedule.
    pub(crate) learning_rate: Result<f64, Arc<Error>>,
}

impl StepHeader {
    /// Creates the header of a replica whose loss and gradients are not known yet.
    pub(crate) fn new(weighting: Weighting, dtype: DType, variables: usize) -> Self {
        Self {
            weighting,
            loss: 0.,
            dtype,
            rows: None,
            finite: true,
            position: None,
            kinds: vec![GradientKind::Nothing; variables],
            early: None,
            order: None,
        }
    }

    /// Adds the loss, summed over the examples.
    pub(crate) fn set_loss(&mut self, loss: f64) {
        self.loss = loss;
        self.finite &= loss.is_finite();
    }

    /// Returns the early send of the dense gradients, if all replicas have made the same one.
    pub(crate) fn early(all: &[&StepHeader]) -> Option<EarlyGradients> {
        let first = all.first()?.early;
        first.filter(|_| all.iter().all(|header| header.early == first))
    }

    /// Returns the number of examples that the losses of all replicas are over.
    pub(crate) fn examples(all: &[&StepHeader]) -> f64 {
        all.iter().filter_map(|header| header.weighting.examples()).map(|n| n as f64).sum()
    }

    /// Returns the factor of this replica's gradients in the sum over all replicas.
    pub(crate) fn weight(&self, examples: f64, replicas: usize) -> f64 {
        match self.weighting {
            Weighting::MeanOver(mine) => mine as f64 / examples,
            Weighting::SumOver(_) => 1. / examples,
            Weighting::Replicas(ReduceOp::Sum) => 1.,
            Weighting::Replicas(ReduceOp::Mean) => 1. / replicas as f64,
        }
    }
}

/// The gradient that a replica has of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum GradientKind {
    Nothing,
    Dense,
    Rows,
}

impl GradientKind {
    pub(crate) fn of(gradient: &Option<ReplicaGradient>) -> Self {
        match gradient {
            None => GradientKind::Nothing,
            Some(ReplicaGradient::Dense(_)) => GradientKind::Dense,
            Some(ReplicaGradient::Rows(_)) => GradientKind::Rows,
        }
    }

    /// The kind of the sum of two: dense where either is.
    pub(crate) fn plus(self, other: Self) -> Self {
        match (self, other) {
            (GradientKind::Nothing, kind) | (kind, GradientKind::Nothing) => kind,
            (GradientKind::Rows, GradientKind::Rows) => GradientKind::Rows,
            _ => GradientKind::Dense,
        }
    }
}

/// The form of a header on the wire.
#[derive(Serialize, Deserialize)]
struct Sent {
    weighting: SentWeighting,
    loss: f64,
    dtype: String,
    rows: Option<usize>,
    finite: bool,
    position: Option<(u64, SentState, Result<f64, String>)>,
    kinds: Vec<GradientKind>,
    early: Option<EarlyGradients>,
    order: Option<Vec<u32>>,
}

/// The state of an optimizer: one byte, but in the steps in which settings are compared.
#[derive(Serialize, Deserialize)]
enum SentState {
    Complete,
    Incomplete,
    Compared { incomplete: bool, settings: u64 },
}

#[derive(Serialize, Deserialize)]
enum SentWeighting {
    MeanOver(usize),
    SumOver(usize),
    Sum,
    Mean,
}

/// Encodes the headers of a process for the other processes.
pub(crate) fn encode<'t>(headers: impl Iterator<Item = &'t StepHeader>) -> Result<Vec<u8>, Unreadable> {
    let sent = headers.map(|header| Sent {
        weighting: match header.weighting {
            Weighting::MeanOver(n) => SentWeighting::MeanOver(n),
            Weighting::SumOver(n) => SentWeighting::SumOver(n),
            Weighting::Replicas(ReduceOp::Sum) => SentWeighting::Sum,
            Weighting::Replicas(ReduceOp::Mean) => SentWeighting::Mean,
        },
        loss: header.loss,
        dtype: header.dtype.as_str().into(),
        rows: header.rows,
        finite: header.finite,
        position: header.position.as_ref().map(
            |Position { finished, incomplete, settings, learning_rate }| {
                let rate = learning_rate.as_ref().map(|rate| *rate).map_err(ToString::to_string);
                let state = match (*settings, *incomplete) {
                    (None, false) => SentState::Complete,
                    (None, true) => SentState::Incomplete,
                    (Some(settings), incomplete) => SentState::Compared { incomplete, settings },
                };
                (*finished, state, rate)
            },
        ),
        kinds: header.kinds.clone(),
        early: header.early,
        order: header.order.clone(),
    });
    postcard::to_stdvec(&sent.collect::<Vec<_>>()).map_err(|_| unreadable("headers that cannot be written"))
}

/// Decodes the headers of another process. Its optimizer may have other settings and another number of variables:
/// [`require_fit`] checks that.
pub(crate) fn decode(bytes: &[u8], replicas: usize) -> Result<Vec<StepHeader>, Unreadable> {
    let sent: Vec<Sent> = postcard::from_bytes(bytes).map_err(|_| unreadable("no headers of a step"))?;
    if sent.len() != replicas {
        return Err(unreadable("headers of another number of replicas"));
    }
    let header = |sent: Sent| {
        Ok(StepHeader {
            weighting: match sent.weighting {
                SentWeighting::MeanOver(n) => Weighting::MeanOver(n),
                SentWeighting::SumOver(n) => Weighting::SumOver(n),
                SentWeighting::Sum => Weighting::Replicas(ReduceOp::Sum),
                SentWeighting::Mean => Weighting::Replicas(ReduceOp::Mean),
            },
            loss: sent.loss,
            dtype: sent.dtype.parse().map_err(|_| unreadable("a loss of no dtype"))?,
            rows: sent.rows,
            finite: sent.finite,
            position: sent.position.map(|(finished, state, rate)| {
                let learning_rate = rate.map_err(|text| Arc::new(Error::other(text)));
                let (incomplete, settings) = match state {
                    SentState::Complete => (false, None),
                    SentState::Incomplete => (true, None),
                    SentState::Compared { incomplete, settings } => (incomplete, Some(settings)),
                };
                Position { finished, incomplete, settings, learning_rate }
            }),
            kinds: sent.kinds,
            early: sent.early,
            order: sent.order,
        })
    };
    sent.into_iter().map(header).collect()
}

/// Refuses headers of another number of variables.
pub(crate) fn require_fit(all: &[StepHeader], variables: usize) -> Result<(), Unreadable> {
    let fits = |header: &StepHeader| {
        header.kinds.len() == variables && header.order.as_ref().is_none_or(|order| order.len() == variables)
    };
    if all.iter().all(fits) { Ok(()) } else { Err(unreadable("headers of another number of variables")) }
}

fn unreadable(what: &'static str) -> Unreadable {
    Unreadable::Bytes { operation: "minimize", offset: 0, what }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decoded_header_is_the_encoded_one_and_what_does_not_fit_is_refused() {
        let header = |weighting, dtype, position, rows: Option<u64>| StepHeader {
            weighting,
            loss: 0.1,
            dtype,
            rows: Some(3),
            finite: true,
            position,
            kinds: vec![GradientKind::Nothing, GradientKind::Dense, GradientKind::Rows],
            early: rows.map(|rows| EarlyGradients { call: 3, layout: rows }),
            order: rows.is_none().then(|| vec![2, 0, 1]),
        };
        let at = |finished, learning_rate| {
            let settings = (finished == 7).then_some(u64::MAX);
            Some(Position { finished, incomplete: finished == 1, settings, learning_rate })
        };
        let all = [
            header(Weighting::MeanOver(3), DType::F32, at(7, Ok(0.3)), None),
            header(Weighting::SumOver(0), DType::BF16, at(0, Ok(f64::MIN_POSITIVE)), Some(1)),
            header(Weighting::Replicas(ReduceOp::Sum), DType::F64, None, Some(1)),
            header(
                Weighting::Replicas(ReduceOp::Mean),
                DType::F16,
                at(1, Err(Arc::new(Error::other("no")))),
                Some(2),
            ),
        ];
        let bytes = encode(all.iter()).unwrap();
        let read = decode(&bytes, 4).unwrap();
        assert_eq!(
            format!("{read:?}").replace("Other(\"no\")", "…"),
            format!("{all:?}").replace("Other(\"no\")", "…")
        );
        assert!(decode(&bytes, 3).is_err());
        assert!(require_fit(&read, 3).is_ok() && require_fit(&read, 2).is_err());
        for len in 0..bytes.len() {
            assert!(decode(&bytes[..len], 4).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn settings_that_have_been_compared_take_no_byte() {
        let of = |settings| {
            let position =
                Some(Position { finished: 7, incomplete: false, settings, learning_rate: Ok(0.1) });
            let header = StepHeader {
                weighting: Weighting::SumOver(1),
                loss: 0.1,
                dtype: DType::F32,
                rows: None,
                finite: true,
                position,
                kinds: vec![GradientKind::Dense; 3],
                early: None,
                order: None,
            };
            encode([&header].into_iter()).unwrap().len()
        };
        // One header, its weighting, loss, dtype, rows, finite, position (7, the state, the rate), kinds, early and
        // order.
        assert_eq!(of(None), 1 + 2 + 8 + 4 + 1 + 1 + (1 + 1 + 1 + 1 + 8) + 4 + 1 + 1);
        // The digest, and whether the state is complete.
        assert_eq!(of(Some(u64::MAX)), of(None) + 1 + 10);
    }
}
