//! A warning about batch-norm layers that are trained but run in evaluation mode.

use distribute_core::internal::UnchangedNorm;
use distribute_decisions::internal::variable_names;
use std::collections::HashSet;

/// Returns the warning to log after the first step; `None` if there is nothing to report.
///
/// `unchanged_norms` are the layers whose running statistics did not change; `trained` are the variables that had
/// gradients. Two kinds of layers are not reported: layers without gradients, which are unused or frozen, and layers
/// whose statistics were loaded, which the program may freeze on purpose.
pub(crate) fn warning(unchanged_norms: Vec<UnchangedNorm>, trained: &HashSet<&str>) -> Option<String> {
    let has_gradient = |path: &str| {
        let name = |last: &str| if path.is_empty() { last.to_owned() } else { format!("{path}.{last}") };
        [name("weight"), name("bias")].iter().any(|name| trained.contains(name.as_str()))
    };
    let (new, loaded): (Vec<_>, Vec<_>) =
        unchanged_norms.into_iter().filter(|layer| has_gradient(&layer.path)).partition(|layer| layer.is_new);
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
        "{count} evaluated in the first step, and not trained: {}; the running statistics are still mean 0 and \
         variance 1, so nothing is \
         normalized; call forward_t with train = true; a model whose code passes false or folds batch-norm into \
         convolutions, as \
         candle_transformers' resnet, efficientnet, mobilenetv4 and mobileone do, is for inference: copy it and pass \
         true, or load \
         trained statistics first; layers that are frozen are not checked; see \"Batch-norm\" in docs/train/from-candle.md",
        variable_names(&names)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(path: &str, is_new: bool) -> UnchangedNorm {
        UnchangedNorm { path: path.into(), is_new }
    }

    #[test]
    fn only_new_layers_with_a_gradient_are_reported() {
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
