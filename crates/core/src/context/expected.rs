//! Tracks results whose gradients are collectives, and lets replicas whose loss has weight 0 participate in
//! them.

use super::ReplicaContext;
use super::combine::failure;
use super::gradient::raise;
use crate::strategy::CommunicationOptions;
use candle_core::{DType, Device, Tensor, TensorId, Var};
use distribute_base::internal::{scalars, to_host};
use distribute_base::{Error, Result};
use distribute_cluster::{Fingerprint, Operation};
use std::collections::{HashMap, HashSet};
use std::panic::Location;
use std::sync::{Arc, Weak};

/// The number of collectives after which replicas agree on the gradients that are no longer needed.
const CALLS: u64 = 1024;

/// The id of a result within a run, equal on all replicas: the number of its call, and its index among the
/// leaves.
pub(crate) type Number = (u64, usize);

/// Participates in the collective of a gradient without contributing to it.
type TakePart = dyn Fn(&ReplicaContext) -> Result<()> + Send + Sync;

/// A result whose gradient is a collective in which every replica has to participate.
struct Expected {
    result: TensorId,
    /// Dangling once no graph on this replica contains the result.
    graph: Weak<()>,
    /// Whether the others' losses depend on variables of this replica through the value it contributed.
    gave: bool,
    /// The options of the call. Its gradient uses them as well, whatever view the others use in backward.
    options: CommunicationOptions,
    with_zeros: Box<TakePart>,
}

/// The results of one replica, in one run, whose gradients some replica may still need.
#[derive(Default)]
pub(super) struct Expectations {
    all: HashMap<Number, Arc<Expected>>,
    numbers: HashMap<TensorId, Number>,
    /// The number of the call at which they are next pruned.
    look_at: u64,
}

/// The expected gradients that a replica needs, in the order of its backward pass; `None` if its loss has weight 0.
type Order = Option<Vec<Number>>;

impl ReplicaContext {
    /// Records that all replicas participate in the gradient of `result`. The operation that made `result`
    /// holds `graph`. `gave` is whether its gradient continues to variables of this replica.
    #[doc(hidden)]
    pub fn expect_gradient(
        &self,
        number: Number,
        (result, graph): (&Tensor, &Arc<()>),
        gave: bool,
        with_zeros: impl Fn(&ReplicaContext) -> Result<()> + Send + Sync + 'static,
    ) {
        if self.member().is_alone() {
            return;
        }
        let expected = Expected {
            result: result.id(),
            graph: Arc::downgrade(graph),
            gave,
            options: self.options(),
            with_zeros: Box::new(with_zeros),
        };
        let mut expectations = self.expected();
        expectations.numbers.insert(expected.result, number);
        expectations.all.insert(number, Arc::new(expected));
    }

    /// Forgets results that are in no replica's graph any more, because one run may be a whole training. All
    /// replicas have to call it in each call whose results have gradients.
    ///
    /// A replica without rows has no graph, although others go backward through the same call. The replicas of
    /// all workers therefore compare their graphs from time to time, at the same calls, because calls have the
    /// same numbers on all.
    ///
    /// # Errors
    /// - [`Error::Collective`]: a replica does not arrive.
    #[doc(hidden)]
    pub fn forget_gradients(&self, call: u64, at: &'static Location<'static>) -> Result<()> {
        let member = self.member();
        if member.is_alone() {
            return Ok(());
        }
        let in_graphs: Vec<Number> = {
            let mut expectations = self.expected();
            if expectations.look_at == 0 {
                expectations.look_at = call + CALLS;
            }
            if call < expectations.look_at {
                return Ok(());
            }
            expectations.look_at = call + CALLS;
            let alive = expectations.all.iter().filter(|(_, expected)| expected.graph.strong_count() > 0);
            alive.map(|(number, _)| *number).collect()
        };
        let question = Fingerprint::new(Operation::Barrier, "which gradients may still be asked for", at);
        let answers = member.all_gather(question, in_graphs).map_err(failure("all_reduce"))?;
        let needed: HashSet<Number> = answers.iter().flat_map(|answer| answer.iter().copied()).collect();
        let mut expectations = self.expected();
        expectations.all.retain(|number, _| needed.contains(number));
        expectations.numbers.retain(|_, number| needed.contains(number));
        Ok(())
    }

    /// Returns the number of results whose gradient some replica may still need.
    pub(crate) fn gradients_expected(&self) -> usize {
        self.expected().all.len()
    }

    /// Announces that this replica goes backward from a loss with a weight, while replicas whose loss has
    /// weight 0 call [`join_gradients`](Self::join_gradients). Returns whether graphs contain collectives.
    ///
    /// # Errors
    /// - [`Error::Collective`]: not all replicas make one of these calls. Every replica gets it.
    #[doc(hidden)]
    pub fn announce_gradients(&self, loss: &Tensor, at: &'static Location<'static>) -> Result<bool> {
        let order = || {
            let expectations = self.expected();
            let number = |node: &Tensor| expectations.numbers.get(&node.id()).copied();
            loss.sorted_nodes().into_iter().filter_map(number).collect()
        };
        let orders = self.orders(|| Some(order()), at)?;
        Ok(orders.iter().any(|order| order.as_ref().as_ref().is_some_and(|order| !order.is_empty())))
    }

    /// Participates in the gradients of the others' collectives, for a replica without a loss or whose loss has
    /// weight 0. Returns the tensor to go backward from, if there are any.
    ///
    /// The others' losses may depend on values that this replica contributed, so its variables may have
    /// gradients. The gradients can't be computed from its loss times 0: a mean over nothing is NaN, and so is
    /// 0 times NaN. Instead it goes backward from the collectives' results, each times 0, in the order of the
    /// others' graphs, which may differ from the order of the calls. Results without a graph here contribute
    /// zeros, because candle does not continue beyond tensors without elements.
    ///
    /// # Errors
    /// - [`Error::Collective`]: not all replicas make one of these calls. Every replica gets it.
    /// - [`Error::InvalidArgument`]: `loss` does not depend on the values that this replica contributed.
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
        for number in order.iter().rev() {
            let Some(expected) = self.expected().all.get(number).cloned() else { continue };
            let term = match nodes.get(&expected.result) {
                // Not `affine`, beyond which candle does not go backward.
                Some(result) if expected.gave => scalars::sum(&(*result * result.zeros_like()?)?)?,
                None if expected.gave => {
                    let reason = format!(
                        "the other replicas' losses depend on what replica {} gave to collective {}, and it has no \
                         loss that leads there; call minimize with its loss and 0 examples, not skip or a constant",
                        self.replica_id_in_sync_group(),
                        number.0 + 1
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

    fn orders(
        &self,
        mine: impl FnOnce() -> Order,
        at: &'static Location<'static>,
    ) -> Result<Vec<Arc<Order>>> {
        let member = self.member();
        if self.gradients_expected() == 0 {
            return Ok(Vec::new());
        }
        self.require_current("minimize")?;
        let detail = "one more loss or micro-batch, whose graph may hold collectives";
        let call = Fingerprint::new(Operation::Minimize, detail, at);
        member.all_gather(call, mine()).map_err(failure("minimize"))
    }
}

/// An operation whose backward participates in an expected gradient with zeros.
struct Zeros {
    context: ReplicaContext,
    expected: Arc<Expected>,
}

impl candle_core::CustomOp1 for Zeros {
    fn name(&self) -> &'static str {
        "collective of others"
    }

    fn cpu_fwd(
        &self,
        storage: &candle_core::CpuStorage,
        layout: &candle_core::Layout,
    ) -> candle_core::Result<(candle_core::CpuStorage, candle_core::Shape)> {
        Ok((storage.clone(), layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, _: &Tensor) -> candle_core::Result<Option<Tensor>> {
        (self.expected.with_zeros)(&self.context).map_err(raise)?;
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{mirrored, on_threads};
    use distribute_tensor::ReduceOp;
    use distribute_testing::watched;

    /// A run may be a whole training. The batches of replica 1 have no graph, those of replica 0 do.
    #[test]
    fn what_no_graph_has_is_forgotten_and_what_one_replica_has_is_not() {
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
                most = most.max(ctx.gradients_expected());
            }
            assert!(ctx.gradients_expected() > 0);
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
    fn what_one_worker_has_is_not_forgotten_by_the_others() {
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
                        most = most.max(ctx.gradients_expected());
                    }
                    assert!(ctx.gradients_expected() > 0);
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
