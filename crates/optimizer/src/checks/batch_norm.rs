//! The warning of batch-norm that a training only evaluates.

use crate::parameters::listed;
use distribute_core::internal::Evaluated;
use std::collections::HashSet;

/// Returns the warning after a first step in which the running statistics of some layers stayed as they are, and the
/// variables `trained` had gradients. `None` if nothing is wrong: layers without gradient took no part or are frozen,
/// and those with statistics of a trained model may be meant to keep them.
pub(crate) fn warning(evaluated: Vec<Evaluated>, trained: &HashSet<&str>) -> Option<String> {
    let has_gradient = |path: &str| {
        let name = |last: &str| if path.is_empty() { last.to_owned() } else { format!("{path}.{last}") };
        [name("weight"), name("bias")].iter().any(|name| trained.contains(name.as_str()))
    };
    let (new, loaded): (Vec<_>, Vec<_>) =
        evaluated.into_iter().filter(|layer| has_gradient(&layer.path)).partition(|layer| layer.is_new);
    if !loaded.is_empty() {
        tracing::debug!("{} layers of batch-norm keep the running statistics that were loaded", loaded.len());
    }
    let paths = new.iter().map(|layer| layer.path.as_str());
    let names: Vec<&str> =
        paths.map(|path| if path.is_empty() { "the model itself" } else { path }).collect();
    let count = match names.len() {
        0 => return None,
        1 => "a layer of batch-norm was".to_owned(),
        n => format!("{n} layers of batch-norm were"),
    };
    Some(format!(
        "{count} evaluated in the first step, and not trained: {}; the running statistics are still mean 0 and variance 1, so nothing is \
         normalised; call forward_t with train = true; a model whose code passes false or folds batch-norm into convolutions, as \
         candle_transformers' resnet, efficientnet, mobilenetv4 and mobileone do, is for inference: copy it and pass true, or load \
         trained statistics first; layers that are frozen are not looked at; see \"Batch-norm\" in docs/from-candle.md",
        listed(&names)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(path: &str, is_new: bool) -> Evaluated {
        Evaluated { path: path.into(), is_new }
    }

    #[test]
    fn only_new_layers_with_a_gradient_are_told_of() {
        let trained = HashSet::from(["a.weight", "b.bias", "c.weight", "weight"]);
        let all = ["a", "b", "d", ""].map(|path| layer(path, true)).into_iter().chain([layer("c", false)]);
        let text = warning(all.collect(), &trained).unwrap();
        assert!(
            text.starts_with(
                "3 layers of batch-norm were evaluated in the first step, and not trained: a, b, the model itself;"
            ),
            "{text}"
        );
        assert_eq!(warning(vec![layer("c", false), layer("d", true)], &trained), None);
        let text = warning(vec![layer("a", true)], &trained).unwrap();
        assert!(text.starts_with("a layer of batch-norm was evaluated"), "{text}");
    }
}
