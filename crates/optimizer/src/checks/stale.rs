//! A warning about tensors that a model has computed from its variables only once, instead of in each step. Training
//! changes the variables, but not these tensors.
//!
//! If a node of one run's graph also appears in the graph of a later run, it was not computed again. The check costs
//! one pass over each of the first two graphs.

use crate::Parameters;
use candle_core::{Tensor, TensorId};
use distribute_base::internal::lock;
use distribute_core::ReplicaContext;
use distribute_decisions::internal::variable_names;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// The check of the losses' graphs in an optimizer's first two runs.
#[derive(Debug, Default)]
pub(crate) struct StaleCheck {
    done: AtomicBool,
    /// The sequence number of the first run, and the ids of its nodes that are not variables.
    first: Mutex<Option<(u64, HashSet<TensorId>)>>,
}

impl StaleCheck {
    /// Checks the graph of `loss`, before the backward pass. A warning is returned at most once, and only on local
    /// replica 0.
    pub(crate) fn check(
        &self,
        loss: &Tensor,
        ctx: &ReplicaContext,
        parameters: &Parameters,
    ) -> Option<String> {
        if self.done.load(Ordering::Relaxed) || ctx.local_replica() != 0 {
            return None;
        }
        let mut first = lock(&self.first);
        let Some((step, nodes)) = &*first else {
            let nodes = loss.sorted_nodes().into_iter().filter(|node| !node.is_variable());
            *first = Some((ctx.step(), nodes.map(Tensor::id).collect()));
            return None;
        };
        if *step == ctx.step() {
            return None;
        }
        self.done.store(true, Ordering::Relaxed);
        let old = loss.sorted_nodes().into_iter().filter(|node| nodes.contains(&node.id()));
        let warning = warning(&old.collect::<Vec<_>>(), parameters);
        *first = None;
        warning
    }
}

/// Returns a warning about nodes that were created before the current step and are reused; `None` if the warning does
/// not apply.
fn warning(old: &[&Tensor], parameters: &Parameters) -> Option<String> {
    let all = parameters.variables.iter().enumerate();
    let name_of: HashMap<TensorId, &str> = all
        .flat_map(|(number, (name, variable))| {
            parameters.replica_tensors(number, variable).map(|variable| (variable.id(), name.as_str()))
        })
        .collect();
    let (mut names, mut below) = (BTreeSet::new(), HashSet::new());
    // The nodes nearest to the loss come first. A node below one of them was computed for it.
    for node in old {
        if below.contains(&node.id()) {
            continue;
        }
        let (variables, others): (Vec<&Tensor>, Vec<&Tensor>) =
            node.sorted_nodes().into_iter().partition(|node| node.is_variable());
        below.extend(others.into_iter().map(Tensor::id));
        // A tensor that shares a variable's memory, such as a transposed weight, changes with it.
        if !variables.iter().any(|variable| memory(variable) == memory(node)) {
            names.extend(variables.iter().filter_map(|variable| name_of.get(&variable.id())));
        }
    }
    if names.is_empty() {
        return None;
    }
    let names: Vec<&str> = names.into_iter().collect();
    Some(format!(
        "this step computes with tensors that were computed in an earlier one, or when the model was built, of {}: \
         training changes these variables, but not these tensors; compute them in forward, and detach tensors that \
         one step passes to the next; models that \
         fold layers into others when they are built, as candle_transformers' mobileone, repvgg and fastvit do, are \
         for inference",
        variable_names(&names)
    ))
}

/// Returns the address of a tensor's storage, which identifies the storage.
fn memory(tensor: &Tensor) -> usize {
    std::ptr::from_ref(&*tensor.storage_and_layout().0).addr()
}
