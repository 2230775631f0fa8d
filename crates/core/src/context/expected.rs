//! Tracks the results whose gradients are collectives, so that replicas whose loss has weight 0 can participate in
//! these collectives.

use super::ReplicaContext;
use super::gradient::to_candle_error;
use crate::failure::failure;
use crate::strategy::CommunicationOptions;
use candle_core::{DType, Device, Tensor, TensorId, Var};
use distribute_base::internal::{scalars, to_host};
use distribute_base::{Error, Result};
use distribute_cluster::{Fingerprint, Operation};
use std::collections::{HashMap, HashSet};
use std::panic::Location;
use std::sync::{Arc, Weak};

/// The interval, in collectives, at which the replicas check which gradients are still needed.
const CALLS: u64 = 1024;

/// The id of a result within a run: the index of its call and the index of its leaf. The id is equal on all replicas.
pub(crate) type ResultId = (u64, usize);

/// A function that participates in the collective of a gradient, and contributes zeros.
type Participate = dyn Fn(&ReplicaContext) -> Result<()> + Send + Sync;

/// A result whose gradient is a collective in which every replica must participate.
struct Expected {
    result: TensorId,
    /// A weak reference to the graph that contains the result. It dangles after this replica has dropped every such
    /// graph.
    graph: Weak<()>,
    /// Whether the result depends on variables of this replica, through the value that this replica contributed to the
    /// call.
    contributed: bool,
    /// The options of the call. The gradient's collective uses the same options, even if the backward pass runs in a
    /// context with other options.
    options: CommunicationOptions,
    participate: Box<Participate>,
}

/// The results of one replica in one run whose gradients some replica may still need.
#[derive(Default)]
pub(super) struct ExpectedGradients {
    results: HashMap<ResultId, Arc<Expected>>,
    ids: HashMap<TensorId, ResultId>,
    /// The index of the call at which the results are next pruned; 0 before the first call whose results have
    /// gradients.
    next_prune: u64,
}

/// The results with expected gradients in the graph of a replica's loss, in the order in which the backward pass visits
/// them. `None` if the replica has no loss, or the loss has weight 0.
type Order = Option<Vec<ResultId>>;

impl ReplicaContext {
    /// Records that all replicas must participate in computing the gradient of `result`. The operation that computed
    /// `result` owns `graph`. `contributed` is `true` if the gradient continues to variables of this replica.
    /// `participate` takes part in the gradient's collective with zeros. Does nothing if there is only one replica.
    #[doc(hidden)]
    pub fn expect_gradient(
        &self,
        id: ResultId,
        (result, graph): (&Tensor, &Arc<()>),
        contributed: bool,
        participate: impl Fn(&ReplicaContext) -> Result<()> + Send + Sync + 'static,
    ) {
        if self.member().is_alone() {
            return;
        }
        let expected = Expected {
            result: result.id(),
            graph: Arc::downgrade(graph),
            contributed,
            options: self.options(),
            participate: Box::new(participate),
        };
        let mut gradients = self.expected();
        gradients.ids.insert(expected.result, id);
        gradients.results.insert(id, Arc::new(expected));
    }

    /// Removes the results that are no longer in any replica's graph. Otherwise they would accumulate, because a single
    /// `run` may last as long as training. Every replica must call this in each collective whose results have
    /// gradients.
    ///
    /// A replica without rows has no graph, although the other replicas go backward through the same call.
    /// The replicas of all workers therefore compare their graphs every `CALLS` calls. Calls have the same
    /// numbers on all replicas, so all compare in the same call.
    ///
    /// # Errors
    /// - [`Error::Collective`]: a replica does not make the call.
    #[doc(hidden)]
    pub fn forget_gradients(&self, call: u64, at: &'static Location<'static>) -> Result<()> {
        let member = self.member();
        if member.is_alone() {
            return Ok(());
        }
        let in_graphs: Vec<ResultId> = {
            let mut gradients = self.expected();
            if gradients.next_prune == 0 {
                gradients.next_prune = call + CALLS;
            }
            if call < gradients.next_prune {
                return Ok(());
            }
            gradients.next_prune = call + CALLS;
            let alive = gradients.results.iter().filter(|(_, expected)| expected.graph.strong_count() > 0);
            alive.map(|(id, _)| *id).collect()
        };
        let fingerprint = Fingerprint::new(Operation::Barrier, "the gradients that are still needed", at);
        let answers = member.all_gather(fingerprint, in_graphs).map_err(failure("all_reduce"))?;
        let needed: HashSet<ResultId> = answers.iter().flat_map(|answer| answer.iter().copied()).collect();
        let mut gradients = self.expected();
        gradients.results.retain(|id, _| needed.contains(id));
        gradients.ids.retain(|_, id| needed.contains(id));
        Ok(())
    }

    /// Returns the number of results whose gradients some replica may still need.
    pub(crate) fn expected_gradients(&self) -> usize {
        self.expected().results.len()
    }

    /// Announces that this replica computes gradients of a loss with a nonzero weight. Replicas whose loss has weight 0
    /// call [`join_gradients`](Self::join_gradients) at the same time. Returns `true` if the graph of any replica's
    /// loss contains collectives. If no expected gradients are recorded, returns `false` without communication.
    ///
    /// # Errors
    /// - [`Error::WrongContext`], [`Error::StaleContext`], [`Error::MixedStrategies`]: this is not the context of the
    ///   closure that is running.
    /// - [`Error::Collective`]: a replica calls neither `announce_gradients` nor `join_gradients`. Every replica gets
    ///   this error.
    #[doc(hidden)]
    pub fn announce_gradients(&self, loss: &Tensor, at: &'static Location<'static>) -> Result<bool> {
        let order = || {
            let gradients = self.expected();
            let id = |node: &Tensor| gradients.ids.get(&node.id()).copied();
            loss.sorted_nodes().into_iter().filter_map(id).collect()
        };
        let orders = self.orders(|| Some(order()), at)?;
        Ok(orders.iter().any(|order| order.as_ref().as_ref().is_some_and(|order| !order.is_empty())))
    }

    /// Takes part in the collectives of the other replicas' backward passes, on a replica that has no loss or whose
    /// loss has weight 0. The replicas with a loss call [`announce_gradients`](Self::announce_gradients) at the same
    /// time. Run a backward pass from the returned tensor, which may give gradients to this replica's variables.
    /// Returns `None` if the other replicas' graphs contain no collectives.
    ///
    /// The other losses may depend on values that this replica contributed, so this replica's variables may have
    /// gradients. Multiplying its own loss by 0 would not compute them: the mean over no rows is NaN, and 0 · NaN is
    /// NaN. Instead, the returned tensor is the sum of the collectives' results, each multiplied by 0. The backward
    /// pass visits these results in the order of the other replicas' graphs, which may differ from the order of the
    /// calls. If a result has no graph on this replica, or the graph contains a tensor without elements, at which
    /// candle's backward pass ends, the replica contributes zeros to the gradient's collective.
    ///
    /// # Errors
    /// - [`Error::WrongContext`], [`Error::StaleContext`], [`Error::MixedStrategies`]: this is not the context of the
    ///   closure that is running.
    /// - [`Error::Collective`]: a replica calls neither `announce_gradients` nor `join_gradients`. Every replica gets
    ///   this error.
    /// - [`Error::InvalidArgument`]: the loss of another replica depends on a value that this replica contributed, but
    ///   this replica has no `loss`, or its `loss` does not depend on that value.
    #[doc(hidden)]
    pub fn join_gradients(
        &self,
        loss: Option<&Tensor>,
        at: &'static Location<'static>,
    ) -> Result<Option<Tensor>> {
        let orders = self.orders(|| None, at)?;
        let Some(order) = orders.iter().find_map(|order| order.as_ref().as_ref()) else { return Ok(None) };
        let nodes = loss.map(Tensor::sorted_nodes).unwrap_or_default();
        let nodes: HashMap<_, _> = nodes.into_iter().map(|node| (node.id(), node)).collect();
        let mut root: Option<Tensor> = None;
        // candle goes backward through a sum from its last term to its first, even if the terms share nodes.
        for id in order.iter().rev() {
            let Some(expected) = self.expected().results.get(id).cloned() else { continue };
            let term = match nodes.get(&expected.result) {
                // Not `affine`, beyond which candle does not go backward.
                Some(result) if expected.contributed => scalars::sum(&(*result * result.zeros_like()?)?)?,
                None if expected.contributed => {
                    let reason = format!(
                        "the other replicas' losses depend on the value that replica {} contributed to collective {}, \
                         but its loss does not; call minimize with its loss and 0 examples, not skip or a constant",
                        self.replica_id_in_sync_group(),
                        id.0 + 1
                    );
                    return Err(Error::invalid("minimize", reason));
                }
                _ => {
                    let nothing = Var::zeros((), DType::F64, &Device::Cpu)?.into_inner();
                    nothing.apply_op1(Zeros { context: self.view(expected.options), expected })?
                }
            };
            // Terms are of any dtype, and on any device.
            let term = to_host(&term)?.to_dtype(DType::F64)?;
            root = Some(match root {
                Some(root) => (root + term)?,
                None => term,
            });
        }
        Ok(root)
    }

    /// Returns an error if each worker trains alone although some replica may still need gradients of collectives,
    /// which all workers would have to compute together.
    ///
    /// # Errors
    /// - [`Error::NotSupported`]: the strategy has [local steps](crate::strategy::LocalSteps) and several workers.
    #[doc(hidden)]
    pub fn require_own_graph(&self, operation: &'static str) -> Result<()> {
        let strategy = self.strategy();
        if strategy.local_steps().is_none()
            || self.member().session().is_none()
            || self.expected_gradients() == 0
        {
            return Ok(());
        }
        Err(Error::NotSupported {
            operation,
            strategy: strategy.extended().kind(),
            what: "gradients of collectives, which all workers compute together, while each worker trains alone \
                   (local_steps)",
            advice: "detach what is passed to all_reduce or all_gather, use candle_nn's batch norm, whose statistics are \
                     those of a replica, or leave out local_steps",
        })
    }

    fn orders(
        &self,
        mine: impl FnOnce() -> Order,
        at: &'static Location<'static>,
    ) -> Result<Vec<Arc<Order>>> {
        let member = self.member();
        if self.expected_gradients() == 0 {
            return Ok(Vec::new());
        }
        self.require_current("minimize")?;
        self.require_own_graph("minimize")?;
        let detail = "one more loss or micro-batch, whose graph may contain collectives";
        let call = Fingerprint::new(Operation::Minimize, detail, at);
        member.all_gather(call, mine()).map_err(failure("minimize"))
    }
}

/// An operation whose backward pass takes part in the collective of an expected gradient, and contributes zeros.
struct Zeros {
    context: ReplicaContext,
    expected: Arc<Expected>,
}

impl candle_core::CustomOp1 for Zeros {
    fn name(&self) -> &'static str {
        "collective of other replicas"
    }

    fn cpu_fwd(
        &self,
        storage: &candle_core::CpuStorage,
        layout: &candle_core::Layout,
    ) -> candle_core::Result<(candle_core::CpuStorage, candle_core::Shape)> {
        Ok((storage.clone(), layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, _: &Tensor) -> candle_core::Result<Option<Tensor>> {
        (self.expected.participate)(&self.context).map_err(to_candle_error)?;
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{mirrored, on_threads};
    use distribute_tensor::ReduceOp;
    use distribute_testing::watched;

    /// A run may last as long as training. The batches of replica 0 have a graph, those of replica 1 do not.
    #[test]
    fn a_gradient_is_forgotten_only_if_no_replica_has_it() {
        watched(forgets);
    }

    fn forgets() {
        let strategy = mirrored(2);
        let found = strategy.run((), |ctx, ()| {
            let first = ctx.replica_id_in_sync_group() == 0;
            let w = Var::new(1f32, &Device::Cpu)?;
            let sum = || {
                let mine =
                    if first { w.as_tensor().clone() } else { Tensor::zeros((), DType::F32, &Device::Cpu)? };
                ctx.all_reduce(ReduceOp::Sum, mine)
            };
            let kept = if first { sum()? } else { sum()?.detach() };
            let mut most = 0;
            for _ in 0..5 * CALLS {
                sum()?;
                most = most.max(ctx.expected_gradients());
            }
            assert!(ctx.expected_gradients() > 0);
            let at = Location::caller();
            let root = if first {
                assert!(ctx.announce_gradients(&kept, at)?);
                Some(kept)
            } else {
                ctx.join_gradients(None, at)?
            };
            let Some(root) = root else { return Ok((most as u64, None)) };
            let gradients = root.backward()?;
            Ok((most as u64, gradients.get(&w).map(|gradient| gradient.to_scalar::<f32>()).transpose()?))
        });
        let found = found.unwrap().into_values();
        assert!(
            found.iter().all(|(most, _)| (CALLS..=2 * CALLS).contains(most)) && found[0].0 == found[1].0,
            "{found:?}"
        );
        assert_eq!((found[0].1, found[1].1), (Some(1.), None));
    }
    #[test]
    fn a_gradient_of_one_worker_is_not_forgotten_by_the_others() {
        watched(|| {
            let most = on_threads(2, 1, |strategy| {
                let most = strategy.run((), |ctx, ()| {
                    let first = ctx.replica_id_in_sync_group() == 0;
                    let x = Var::new(1f32, &Device::Cpu)?;
                    let sum = || {
                        let mine = if first { x.as_tensor().clone() } else { x.as_detached_tensor() };
                        ctx.all_reduce(ReduceOp::Sum, mine)
                    };
                    let kept = if first { sum()? } else { sum()?.detach() };
                    let mut most = 0;
                    for _ in 0..3 * CALLS {
                        sum()?;
                        most = most.max(ctx.expected_gradients());
                    }
                    assert!(ctx.expected_gradients() > 0);
                    let at = Location::caller();
                    let root = if first {
                        assert!(ctx.announce_gradients(&kept, at)?);
                        Some(kept)
                    } else {
                        ctx.join_gradients(None, at)?
                    };
                    root.map(|root| root.backward()).transpose()?;
                    Ok(most as u64)
                })?;
                Ok(most.into_values()[0])
            });
            let most = most.unwrap();
            assert!((CALLS..=2 * CALLS).contains(&most[0]) && most[0] == most[1], "{most:?}");
        });
    }

    /// The losses of worker 0 depend on values of worker 1, whose own losses have no weight.
    #[test]
    fn a_worker_without_a_weight_joins_the_gradients_of_another() {
        for gives in [true, false] {
            watched(move || joins(gives));
        }
    }

    fn joins(gives: bool) {
        let all = on_threads(2, 2, |strategy| {
            let gradients = strategy.run((), |ctx, ()| {
                let id = ctx.replica_id_in_sync_group();
                let x = Var::new(1. + id as f64, &Device::Cpu)?;
                let mine = if gives || id < 2 { x.as_tensor().clone() } else { x.as_detached_tensor() };
                let squares = ctx.all_reduce(ReduceOp::Sum, mine.sqr()?)?;
                let values = ctx.all_reduce(ReduceOp::Sum, mine)?;
                let loss = ((squares * 2.)? + (values * 3.)?)?;
                let at = Location::caller();
                let root = if id < 2 {
                    assert!(ctx.announce_gradients(&loss, at)?);
                    Some(loss)
                } else {
                    ctx.join_gradients(gives.then_some(&loss), at)?
                };
                let Some(root) = root else { return Err(Error::other("there are gradients to join")) };
                Ok(root.backward()?.get(&x).map(|gradient| gradient.to_scalar::<f64>()).transpose()?)
            })?;
            Ok(gradients.into_values())
        });
        // For two losses, each with 2 x² + 3 x.
        let gradient = |id: usize| (gives || id < 2).then_some(2. * (4. * (1. + id as f64) + 3.));
        let all: Vec<_> = all.unwrap().into_iter().flatten().collect();
        assert_eq!(all, (0..4).map(gradient).collect::<Vec<_>>());
    }
}
