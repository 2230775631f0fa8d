//! The header of a replica's contribution to a step: the facts that all replicas need before they exchange gradients.

use crate::Weighting;
use candle_core::DType;
use distribute_base::Error;
use distribute_base::internal::ReplicaGradient;
use distribute_collective::recovery::shards::Version;
use distribute_tensor::Error as Unreadable;
use distribute_tensor::ReduceOp;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The header of a replica's contribution to a step. All decisions about the step are functions of the headers of all
/// replicas.
#[derive(Clone, Debug)]
pub(crate) struct StepHeader {
    pub(crate) weighting: Weighting,
    /// The sum of the losses of this replica's examples.
    pub(crate) loss: f64,
    /// The dtype of the loss.
    pub(crate) dtype: DType,
    /// The number of rows of this replica's batch; `None` if it is unknown.
    pub(crate) rows: Option<usize>,
    /// Whether the loss and, if gradients are checked, all gradients are finite.
    pub(crate) finite: bool,
    /// The position of the process in its training run. Only the first replica of a process sends it, and only if
    /// processes are compared or the learning rate has a schedule.
    pub(crate) position: Option<Position>,
    /// The kind of gradient of each variable, in the order of the optimizer's variables.
    pub(crate) kinds: Vec<GradientKind>,
    /// The dense gradients that were sent early to the other workers; `None` if none were.
    pub(crate) early: Option<EarlyGradients>,
    /// The order in which gradients were completed. Only the first replica sends it, and only if gradients could have
    /// been sent early but were not.
    pub(crate) order: Option<Vec<u32>>,
}

/// The facts that workers compare before they sum their weights.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct OuterHeader {
    /// The number of outer steps of the optimizer so far.
    pub(crate) outer: u64,
    /// The number of local steps that end with this outer step.
    pub(crate) since: u64,
    /// The digest of the optimizer's settings.
    pub(crate) settings: u64,
    /// The learning rate; `None` if it follows a schedule, because each worker computes it from its own number of
    /// steps.
    pub(crate) learning_rate: Option<f64>,
}

/// A description of a replica's dense gradients that were sent before the headers are exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EarlyGradients {
    /// The sequence number of the call that receives the gradients.
    pub(crate) call: u64,
    /// The digest of the layout of the packs.
    pub(crate) layout: u64,
}

/// The position of a process in its training run. All processes must have the same position.
#[derive(Clone, Debug)]
pub(crate) struct Position {
    /// The number of steps that this optimizer has finished.
    pub(crate) finished: u64,
    /// Whether this process's shard of the optimizer's state belongs to a different step than the variables.
    pub(crate) incomplete: bool,
    /// The version of the weights and slots; `None` unless workers have copies of each other's slots.
    pub(crate) version: Option<Version>,
    /// The digest of the optimizer's settings; `None` after all workers have compared them.
    pub(crate) settings: Option<u64>,
    /// The factor by which losses are multiplied; `None` if they are not scaled.
    pub(crate) loss_scale: Option<f64>,
    /// The learning rate of the next step, or the error of its schedule.
    pub(crate) learning_rate: Result<f64, Arc<Error>>,
}

impl StepHeader {
    /// Creates a header without a loss and without gradients.
    pub(crate) fn new(weighting: Weighting, dtype: DType, variables: usize) -> Self {
        Self {
            weighting,
            loss: 0.,
            dtype,
            rows: None,
            finite: true,
            position: None,
            kinds: vec![GradientKind::Missing; variables],
            early: None,
            order: None,
        }
    }

    /// Sets the sum of the losses of the examples, and whether it is finite.
    pub(crate) fn set_loss(&mut self, loss: f64) {
        self.loss = loss;
        self.finite &= loss.is_finite();
    }

    /// Returns the description of the dense gradients that were sent early if it is equal on all replicas; otherwise
    /// `None`.
    pub(crate) fn early(all: &[&StepHeader]) -> Option<EarlyGradients> {
        let first = all.first()?.early;
        first.filter(|_| all.iter().all(|header| header.early == first))
    }

    /// Returns the kind of each variable's gradient, summed over all replicas.
    pub(crate) fn kinds_of_sums(all: &[&StepHeader]) -> Vec<GradientKind> {
        let mut kinds = all.first().map_or_else(Vec::new, |first| first.kinds.clone());
        for header in all {
            kinds.iter_mut().zip(&header.kinds).for_each(|(all, kind)| *all = all.combine(*kind));
        }
        kinds
    }

    /// Returns the total number of examples of all replicas.
    pub(crate) fn examples(all: &[&StepHeader]) -> f64 {
        all.iter().filter_map(|header| header.weighting.examples()).map(|n| n as f64).sum()
    }

    /// Returns the factor by which this replica's gradients are multiplied in the sum over all replicas. `examples` is
    /// the total number of examples.
    pub(crate) fn weight(&self, examples: f64, replicas: usize) -> f64 {
        match self.weighting {
            Weighting::MeanOver(mine) => mine as f64 / examples,
            Weighting::SumOver(_) => 1. / examples,
            Weighting::Replicas(ReduceOp::Sum) => 1.,
            Weighting::Replicas(ReduceOp::Mean) => 1. / replicas as f64,
        }
    }
}

/// The kind of gradient that a replica has for a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum GradientKind {
    Missing,
    Dense,
    Rows,
}

impl GradientKind {
    pub(crate) fn of(gradient: &Option<ReplicaGradient>) -> Self {
        match gradient {
            None => GradientKind::Missing,
            Some(ReplicaGradient::Dense(_)) => GradientKind::Dense,
            Some(ReplicaGradient::Rows(_)) => GradientKind::Rows,
        }
    }

    /// Returns the kind of the sum of two gradients. The sum is dense if one of them is dense.
    pub(crate) fn combine(self, other: Self) -> Self {
        match (self, other) {
            (GradientKind::Missing, kind) | (kind, GradientKind::Missing) => kind,
            (GradientKind::Rows, GradientKind::Rows) => GradientKind::Rows,
            _ => GradientKind::Dense,
        }
    }
}

/// A header as it is sent to other processes.
#[derive(Serialize, Deserialize)]
struct WireHeader {
    weighting: WireWeighting,
    loss: f64,
    dtype: String,
    rows: Option<usize>,
    finite: bool,
    position: Option<WirePosition>,
    kinds: Vec<GradientKind>,
    early: Option<EarlyGradients>,
    order: Option<Vec<u32>>,
}

/// A [`Position`] as it is sent to other processes.
#[derive(Serialize, Deserialize)]
struct WirePosition {
    finished: u64,
    state: WireState,
    loss_scale: Option<f64>,
    learning_rate: Result<f64, String>,
}

/// The completeness of an optimizer's state and, in steps in which settings are compared, the digest of the settings,
/// as they are sent to other processes. Unless workers have copies of the state, this takes one byte in all other
/// steps.
#[derive(Serialize, Deserialize)]
enum WireState {
    Complete,
    Incomplete,
    Compared {
        incomplete: bool,
        settings: u64,
    },
    /// A state of which workers have copies, in all steps.
    Replicated {
        incomplete: bool,
        settings: Option<u64>,
        version: Version,
    },
}

#[derive(Serialize, Deserialize)]
enum WireWeighting {
    MeanOver(usize),
    SumOver(usize),
    Sum,
    Mean,
}

/// Encodes the headers of this process's replicas for the other processes.
pub(crate) fn encode<'t>(headers: impl Iterator<Item = &'t StepHeader>) -> Result<Vec<u8>, Unreadable> {
    let sent = headers.map(|header| WireHeader {
        weighting: match header.weighting {
            Weighting::MeanOver(n) => WireWeighting::MeanOver(n),
            Weighting::SumOver(n) => WireWeighting::SumOver(n),
            Weighting::Replicas(ReduceOp::Sum) => WireWeighting::Sum,
            Weighting::Replicas(ReduceOp::Mean) => WireWeighting::Mean,
        },
        loss: header.loss,
        dtype: header.dtype.as_str().into(),
        rows: header.rows,
        finite: header.finite,
        position: header.position.as_ref().map(
            |Position { finished, incomplete, version, settings, loss_scale, learning_rate }| {
                let learning_rate = learning_rate.as_ref().map(|rate| *rate).map_err(ToString::to_string);
                let state = match (*version, *settings, *incomplete) {
                    (Some(version), settings, incomplete) => {
                        WireState::Replicated { incomplete, settings, version }
                    }
                    (None, None, false) => WireState::Complete,
                    (None, None, true) => WireState::Incomplete,
                    (None, Some(settings), incomplete) => WireState::Compared { incomplete, settings },
                };
                WirePosition { finished: *finished, state, loss_scale: *loss_scale, learning_rate }
            },
        ),
        kinds: header.kinds.clone(),
        early: header.early,
        order: header.order.clone(),
    });
    postcard::to_stdvec(&sent.collect::<Vec<_>>()).map_err(|_| unreadable("headers that cannot be written"))
}

/// Decodes the headers of another process, one for each of its `replicas` replicas. The optimizer of that process may
/// have different settings and a different number of variables; [`require_fit`] checks the number.
pub(crate) fn decode(bytes: &[u8], replicas: usize) -> Result<Vec<StepHeader>, Unreadable> {
    let sent: Vec<WireHeader> =
        postcard::from_bytes(bytes).map_err(|_| unreadable("no headers of a step"))?;
    if sent.len() != replicas {
        return Err(unreadable("headers of another number of replicas"));
    }
    let header = |sent: WireHeader| {
        Ok(StepHeader {
            weighting: match sent.weighting {
                WireWeighting::MeanOver(n) => Weighting::MeanOver(n),
                WireWeighting::SumOver(n) => Weighting::SumOver(n),
                WireWeighting::Sum => Weighting::Replicas(ReduceOp::Sum),
                WireWeighting::Mean => Weighting::Replicas(ReduceOp::Mean),
            },
            loss: sent.loss,
            dtype: sent.dtype.parse().map_err(|_| unreadable("a loss of no dtype"))?,
            rows: sent.rows,
            finite: sent.finite,
            position: sent.position.map(|WirePosition { finished, state, loss_scale, learning_rate }| {
                let learning_rate = learning_rate.map_err(|text| Arc::new(Error::other(text)));
                let (incomplete, settings, version) = match state {
                    WireState::Complete => (false, None, None),
                    WireState::Incomplete => (true, None, None),
                    WireState::Compared { incomplete, settings } => (incomplete, Some(settings), None),
                    WireState::Replicated { incomplete, settings, version } => {
                        (incomplete, settings, Some(version))
                    }
                };
                Position { finished, incomplete, version, settings, loss_scale, learning_rate }
            }),
            kinds: sent.kinds,
            early: sent.early,
            order: sent.order,
        })
    };
    sent.into_iter().map(header).collect()
}

/// Returns an error if a header, or the order that it contains, is for a different number of variables.
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
    fn a_header_round_trips_and_a_mismatch_is_refused() {
        let header = |weighting, dtype, position, rows: Option<u64>| StepHeader {
            weighting,
            loss: 0.1,
            dtype,
            rows: Some(3),
            finite: true,
            position,
            kinds: vec![GradientKind::Missing, GradientKind::Dense, GradientKind::Rows],
            early: rows.map(|rows| EarlyGradients { call: 3, layout: rows }),
            order: rows.is_none().then(|| vec![2, 0, 1]),
        };
        let at = |finished, learning_rate| {
            let settings = (finished == 7).then_some(u64::MAX);
            let loss_scale = (finished == 0).then_some(1024.);
            let version = (finished == 7).then_some(Version { step: 7, generation: 2 });
            Some(Position {
                finished,
                incomplete: finished == 1,
                version,
                settings,
                loss_scale,
                learning_rate,
            })
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
            let position = Some(Position {
                finished: 7,
                incomplete: false,
                version: None,
                settings,
                loss_scale: None,
                learning_rate: Ok(0.1),
            });
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
        // One header, its weighting, loss, dtype, rows, finite, position (7, the state, no scale, the rate), kinds,
        // early and order.
        assert_eq!(of(None), 1 + 2 + 8 + 4 + 1 + 1 + (1 + 1 + 1 + 1 + 1 + 8) + 4 + 1 + 1);
        // The digest, and whether the state is complete.
        assert_eq!(of(Some(u64::MAX)), of(None) + 1 + 10);
    }
}
