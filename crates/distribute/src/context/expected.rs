//! Results whose gradients are collectives: which there are, and how replicas without a weight take part in them.

use super::ReplicaContext;
use super::combine::failure;
use super::gradient::raise;
use crate::strategy::CommunicationOptions;
use crate::{Error, Result};
use candle_core::{DType, Device, Tensor, TensorId, Var};
use distribute_cluster::{Fingerprint, Operation};
use std::collections::{HashMap, HashSet};
use std::panic::Location;
use std::sync::{Arc, Weak};

/// After so many collectives, replicas agree on which gradients can no longer be asked for.
const CALLS: u64 = 1024;

/// A result among all of this run: the number of its call, and its place in it. The same on all replicas.
pub(crate) type Number = (u64, usize);

/// Takes part in a gradient without one of its own.
type TakePart = dyn Fn(&ReplicaContext) -> Result<()> + Send + Sync;

/// A result whose gradient is a collective: every replica has to take part in it.
struct Expected {
    result: TensorId,
    /// Gone where no graph on this replica has the result any more.
    graph: Weak<()>,
    /// Whether the others' losses have gradients here, through what this replica gave.
    gave: bool,
    /// How the call communicated: its gradient does the same, on whatever view the others go backward.
    options: CommunicationOptions,
    with_zeros: Box<TakePart>,
}

/// The results of one replica, in one run, whose gradients some replica may still ask for.
#[derive(Default)]
pub(super) struct Expectations {
    all: HashMap<Number, Arc<Expected>>,
    numbers: HashMap<TensorId, Number>,
    /// The call at which they are next looked through.
    look_at: u64,
}

/// For a replica whose loss has a weight: which of the expected gradients it needs, in the order of its backward.
type Order = Option<Vec<Number>>;

impl ReplicaContext {
    /// Notes that all replicas take part in the gradient of `result`. The operation behind `result` holds `graph`; `gave`
    /// says whether gradients go on from there to variables of this replica.
    pub(crate) fn expect_gradient(
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

    /// Forgets results that no replica's graph has any more: a run may be a whole training. To be called by all replicas
    /// in each call whose results have gradients.
    ///
    /// A replica without rows has no graph, though others go backward through the same call. So replicas of all workers ask
    /// each other, now and then: at the same calls, since these have the same numbers on all.
    ///
    /// # Errors
    /// [`Error::Collective`] where a replica does not come.
    pub(crate) fn forget_gradients(&self, call: u64, at: &'static Location<'static>) -> Result<()> {
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
        let answers = member.share(question, in_graphs).map_err(failure("all_reduce"))?;
        let needed: HashSet<Number> = answers.iter().flat_map(|answer| answer.iter().copied()).collect();
        let mut expectations = self.expected();
        expectations.all.retain(|number, _| needed.contains(number));
        expectations.numbers.retain(|_, number| needed.contains(number));
        Ok(())
    }

    /// How many results have a gradient that some replica may ask for, in which all take part.
    pub(crate) fn gradients_expected(&self) -> usize {
        self.expected().all.len()
    }

    /// To be called by a replica before it goes backward from a loss that has a weight, while those without a weight call
    /// [`join_gradients`](Self::join_gradients). Gives whether replicas are in each other's graphs.
    ///
    /// # Errors
    /// [`Error::Collective`] on every replica where not all make one of these calls.
    pub(crate) fn announce_gradients(&self, loss: &Tensor, at: &'static Location<'static>) -> Result<bool> {
        let order = || {
            let expectations = self.expected();
            let number = |node: &Tensor| expectations.numbers.get(&node.id()).copied();
            loss.sorted_nodes().into_iter().filter_map(number).collect()
        };
        let orders = self.orders(|| Some(order()), at)?;
        Ok(orders.iter().any(|order| order.as_ref().as_ref().is_some_and(|order| !order.is_empty())))
    }

    /// Takes part in the gradients of the others' collectives, for a replica whose own loss, if it has one, has no
    /// weight. Gives what it has to go backward from, if there are any.
    ///
    /// The others' losses may depend on what this replica gave, so it may have gradients all the same. Its loss is no
    /// way to them: a mean over nothing is NaN, and 0 times NaN, too. So it goes backward from the collectives' results,
    /// each times 0, in the order in which the others do, which is the order of their graphs and not of the calls. For
    /// what has no graph here, since candle goes no further than to tensors without elements, there are zeros.
    ///
    /// # Errors
    /// [`Error::Collective`] on every replica where not all make this call; [`Error::InvalidArgument`] where `loss` does
    /// not lead to what this replica gave.
    pub(crate) fn join_gradients(
        &self,
        loss: Option<&Tensor>,
        at: &'static Location<'static>,
    ) -> Result<Option<Tensor>> {
        let orders = self.orders(|| None, at)?;
        let Some(order) = orders.iter().find_map(|order| order.as_ref().as_ref()) else { return Ok(None) };
        let nodes = loss.map(Tensor::sorted_nodes).unwrap_or_default();
        let nodes: HashMap<_, _> = nodes.into_iter().map(|node| (node.id(), node)).collect();
        let mut root: Option<Tensor> = None;
        // candle goes backward through a sum from its last term to its first, whatever these have in common.
        for number in order.iter().rev() {
            let Some(expected) = self.expected().all.get(number).cloned() else { continue };
            let term = match nodes.get(&expected.result) {
                // Not `affine`: candle goes no further there.
                Some(result) if expected.gave => (*result * result.zeros_like()?)?.sum_all()?,
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
            let term = term.to_dtype(DType::F64)?;
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
        member.share(call, mine()).map_err(failure("minimize"))
    }
}

/// Takes part in a gradient, with zeros, where candle comes by on its way backward.
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
    use crate::{MirroredStrategy, MultiWorkerMirroredStrategy, ReduceOp, Sgd};
    use candle_nn::{Init, VarBuilder};
    use distribute_testing::watched;

    /// A run may be a whole training. The pieces of replica 1 have no graph, those of replica 0 do.
    #[test]
    fn what_no_graph_has_is_forgotten_and_what_one_replica_has_is_not() {
        watched(forgets);
    }

    fn forgets() {
        let strategy = MirroredStrategy::cpus(2).unwrap();
        let model = strategy.replicate(|vb: VarBuilder| vb.get_with_hints(1, "w", Init::Const(1.))).unwrap();
        let optimizer = Sgd::new(&model.variables, 1.).unwrap();
        let most = strategy.run(&model, |ctx, w: &Tensor| {
            let first = ctx.replica_id_in_sync_group() == 0;
            let sum = || {
                let mine = if first { w.sum_all()? } else { Tensor::zeros((), DType::F32, &Device::Cpu)? };
                ctx.all_reduce(ReduceOp::Sum, mine)
            };
            let kept = if first { sum()? } else { sum()?.detach() };
            let mut most = 0;
            for _ in 0..5 * CALLS {
                sum()?;
                most = most.max(ctx.gradients_expected());
            }
            assert!(ctx.gradients_expected() > 0);
            optimizer.minimize(ctx, kept, usize::from(first))?;
            Ok(most as u64)
        });
        let most = most.unwrap().into_values();
        assert!(most.iter().all(|most| (CALLS..=2 * CALLS).contains(most)) && most[0] == most[1], "{most:?}");
        assert_eq!(model.variables.get("w").unwrap().to_vec1::<f32>().unwrap(), [0.]);
    }
    #[test]
    fn what_one_worker_has_is_not_forgotten_by_the_others() {
        watched(|| {
            let most = MultiWorkerMirroredStrategy::on_threads(2, 1, |strategy| {
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

    /// The losses of worker 0 depend on what worker 1 gave, whose own have no weight.
    #[test]
    fn a_worker_without_a_weight_joins_the_gradients_of_another() {
        for gives in [true, false] {
            watched(move || joins(gives));
        }
    }

    fn joins(gives: bool) {
        let all = MultiWorkerMirroredStrategy::on_threads(2, 2, |strategy| {
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
        // Of two losses, each with 2 x² + 3 x.
        let gradient = |id: usize| (gives || id < 2).then_some(2. * (4. * (1. + id as f64) + 3.));
        let all: Vec<_> = all.unwrap().into_iter().flatten().collect();
        assert_eq!(all, (0..4).map(gradient).collect::<Vec<_>>());
    }
}
