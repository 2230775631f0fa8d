//! A warning of tensors that a model computes of its variables once, and not in each step: training changes the
//! variables, and not what is computed with.
//!
//! A node of the graph of one `run` that is a node of a later one was not computed again. This costs a pass over the
//! graphs of the first two.

use crate::Parameters;
use crate::parameters::listed;
use candle_core::{Tensor, TensorId};
use distribute_base::internal::lock;
use distribute_core::ReplicaContext;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Watches the graphs of an optimizer's losses, in two runs.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    done: AtomicBool,
    /// The number of the first run, and the nodes of its graph that are no variables.
    first: Mutex<Option<(u64, HashSet<TensorId>)>>,
}

impl Watch {
    /// Returns what to warn of before going backward from `loss`: once at most, by local replica 0, for all.
    pub(crate) fn look(
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

/// Returns the warning of nodes that are older than their step.
fn warning(old: &[&Tensor], parameters: &Parameters) -> Option<String> {
    let all = parameters.variables.iter().enumerate();
    let name_of: HashMap<TensorId, &str> = all
        .flat_map(|(number, (name, variable))| {
            parameters.computed_with(number, variable).map(|variable| (variable.id(), name.as_str()))
        })
        .collect();
    let (mut names, mut below) = (BTreeSet::new(), HashSet::new());
    // Those nearest to the loss come first. What is below one of them was computed for it.
    for node in old {
        if below.contains(&node.id()) {
            continue;
        }
        let (variables, others): (Vec<&Tensor>, Vec<&Tensor>) =
            node.sorted_nodes().into_iter().partition(|node| node.is_variable());
        below.extend(others.into_iter().map(Tensor::id));
        // What shares a variable's memory, as a transposed weight does, changes with it.
        if !variables.iter().any(|variable| memory(variable) == memory(node)) {
            names.extend(variables.iter().filter_map(|variable| name_of.get(&variable.id())));
        }
    }
    if names.is_empty() {
        return None;
    }
    let names: Vec<&str> = names.into_iter().collect();
    Some(format!(
        "this step computes with tensors that were computed in an earlier one, or when the model was built, of {}: training changes these \
         variables, and not what the model computes with; compute it in forward, and detach what one step gives to the next; models that \
         fold layers into others when they are built, as candle_transformers' mobileone, repvgg and fastvit do, are for inference",
        listed(&names)
    ))
}

/// The address of the elements of a tensor.
fn memory(tensor: &Tensor) -> usize {
    std::ptr::from_ref(&*tensor.storage_and_layout().0).addr()
}
