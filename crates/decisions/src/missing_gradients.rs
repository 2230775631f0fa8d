//! The report on variables without a gradient, with the likely cause and a fix.
//!
//! A detached operation leaves no trace in candle's graph, so the cause is only guessed, based on the names of
//! variables.

use crate::names::variable_names;
use std::collections::BTreeSet;

/// A report on variables without a gradient.
#[derive(Debug, PartialEq, Eq)]
pub struct MissingReport {
    /// The names of these variables.
    pub missing: Vec<String>,
    /// The message for the log or the error.
    pub text: String,
}

/// The likely cause of missing gradients.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Cause {
    /// Only the last layers, which have the given names, have gradients.
    DetachedLayers(Vec<String>),
    /// Queries and keys of attention layers have no gradients.
    Attention,
    /// The weights of normalization layers have no gradients.
    Norms,
    /// The variables are tables of constants.
    Tables,
    Unknown,
}

/// Returns a report on a step, or `None` if all variables have a gradient. `variables` contains the name of each
/// variable, and whether it has a gradient.
pub fn missing_gradients(variables: &[(&str, bool)]) -> Option<MissingReport> {
    let of = |with: bool| -> Vec<&str> {
        variables.iter().filter(|(_, has)| *has == with).map(|(name, _)| *name).collect()
    };
    let (missing, present) = (of(false), of(true));
    if missing.is_empty() {
        return None;
    }
    let (count, all) = (missing.len(), variables.len());
    let text = format!(
        "{count} of {all} variables got no gradient in the first step: {}; {}; freeze variables that should not be \
         trained; if variables have gradients in some steps only, set on_missing_gradients(MissingGradients::Quiet)",
        variable_names(&missing),
        cause(&missing, &present).advice(),
    );
    Some(MissingReport { missing: missing.into_iter().map(String::from).collect(), text })
}

fn cause(missing: &[&str], present: &[&str]) -> Cause {
    let parameters: Vec<&str> = missing.iter().copied().filter(|name| !is_table(name)).collect();
    let modules: BTreeSet<&str> = present.iter().map(|name| module(name)).collect();
    if parameters.is_empty() {
        Cause::Tables
    } else if parameters.iter().all(|name| is_norm(name)) {
        Cause::Norms
    } else if parameters.iter().all(|name| is_query_or_key(name) || is_norm(name)) {
        Cause::Attention
    } else if (1..=2).contains(&modules.len()) && parameters.len() > present.len() {
        Cause::DetachedLayers(modules.into_iter().map(String::from).collect())
    } else {
        Cause::Unknown
    }
}

impl Cause {
    fn advice(&self) -> String {
        const FUSED: &str = "candle's fused rms_norm, layer_norm, softmax_last_dim and rope have no backward: patch \
                             candle-nn, or use those of distribute::nn (rms_norm, layer_norm, ops::softmax_last_dim, \
                             rotary_emb::rope) instead, see docs/train/transformers.md";
        match self {
            Cause::DetachedLayers(modules) => format!(
                "only {} got one, so an operation without backward comes before it and cuts off everything else; \
                 {FUSED}",
                modules.join(" and ")
            ),
            Cause::Attention => format!(
                "these come before the weights of attention, so the softmax or the rotary embedding has no backward; {FUSED}"
            ),
            Cause::Norms => format!(
                "these belong to norms without backward; variables before such a norm get gradients only through \
                 residual connections, which is wrong; {FUSED}"
            ),
            Cause::Tables => "according to their names, they are tables of constants".to_string(),
            Cause::Unknown => format!(
                "the loss does not depend on them, or they are cut off from it: by detach, by a conversion to numbers \
                 (to_vec, to_scalar), or by an operation without backward; {FUSED}"
            ),
        }
    }
}

/// Returns the path of the module that a variable belongs to; the name itself if it has no path.
fn module(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(module, _)| module)
}

fn is_norm(name: &str) -> bool {
    name.split('.').any(|part| {
        let part = part.to_ascii_lowercase();
        part.contains("norm") || part == "ln" || part.starts_with("ln_") || part.ends_with("_ln") || {
            part.strip_prefix("ln").is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()))
        }
    })
}

fn is_query_or_key(name: &str) -> bool {
    const NAMES: [&str; 14] = [
        "q", "k", "wq", "wk", "query", "key", "q_proj", "k_proj", "q_lin", "k_lin", "to_q", "to_k", "q_norm",
        "k_norm",
    ];
    name.split('.').any(|part| NAMES.contains(&part.to_ascii_lowercase().as_str()))
}

/// Returns `true` if a variable's name indicates a table of sines or cosines, which some models keep among their
/// variables.
fn is_table(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or_default().to_ascii_lowercase();
    ["freqs", "freq_cis", "freqs_cis", "inv_freq", "cos_cached", "sin_cached"]
        .iter()
        .any(|part| last.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<'n>(missing: &[&'n str], present: &[&'n str]) -> (Cause, String) {
        let all: Vec<_> = missing
            .iter()
            .map(|name| (*name, false))
            .chain(present.iter().map(|name| (*name, true)))
            .collect();
        let report = missing_gradients(&all).unwrap();
        assert_eq!(report.missing, missing);
        (cause(missing, present), report.text)
    }

    #[test]
    fn where_all_have_one_nothing_is_said() {
        assert_eq!(missing_gradients(&[("a", true), ("b", true)]), None);
        assert_eq!(missing_gradients(&[]), None);
    }

    #[test]
    fn a_model_that_trains_only_its_head_is_cut_off_before_it() {
        let names: Vec<String> = (0..4)
            .flat_map(|layer| {
                ["attn.wq", "attn.wk", "attn.wv", "ffn.w1", "norm"]
                    .map(|part| format!("layers.{layer}.{part}.weight"))
            })
            .collect();
        let mut missing: Vec<&str> = names.iter().map(String::as_str).collect();
        missing.extend(["norm.weight", "tok_embeddings.weight", "freq_cis_real"]);
        let (cause, text) = of(&missing, &["output.weight"]);
        assert_eq!(cause, Cause::DetachedLayers(vec!["output".into()]));
        for part in [
            "23 of 24 variables got no gradient in the first step: layers.0.attn.wq.weight, ",
            "layers.1.norm.weight and 13 more; only output got one",
            "rms_norm, layer_norm, softmax_last_dim and rope have no backward",
            "distribute::nn",
            "docs/train/transformers.md",
            "freeze",
            "MissingGradients::Quiet",
        ] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
        // A head of two layers, with biases.
        let head = ["classifier.bias", "classifier.weight", "pre.bias", "pre.weight"];
        assert!(
            matches!(of(&missing, &head).0, Cause::DetachedLayers(modules) if modules == ["classifier", "pre"])
        );
    }

    #[test]
    fn queries_and_keys_are_behind_the_softmax() {
        let missing = ["h.0.attn.q_proj.weight", "h.0.attn.k_proj.bias", "h.1.attention.self.query.weight"];
        let present = ["h.0.attn.v_proj.weight", "h.0.mlp.weight", "wte.weight", "head.weight"];
        let (cause, text) = of(&missing, &present);
        assert_eq!(cause, Cause::Attention);
        assert!(text.contains("softmax") && text.contains("3 of 7"), "{text}");
    }

    #[test]
    fn norms_alone_warn_of_wrong_gradients_before_them() {
        let present = ["a.fc.weight", "b.fc.weight", "c.fc.weight", "emb.weight"];
        for norm in [
            "a.norm.weight",
            "h.0.ln_1.bias",
            "ln.weight",
            "x.LayerNorm.weight",
            "final_layernorm.weight",
            "ln2.weight",
        ] {
            let (cause, text) = of(&[norm], &present);
            assert_eq!(cause, Cause::Norms, "{norm}");
            assert!(text.contains("residual"), "{text}");
        }
        assert!(!is_norm("lnear.weight") && !is_norm("plane.weight") && is_norm("ln.weight"));
    }

    #[test]
    fn tables_of_constants_and_unknown_causes() {
        assert_eq!(of(&["freq_cis_imag", "freq_cis_real"], &["a.weight"]).0, Cause::Tables);
        assert_eq!(of(&["pooler.weight"], &["a.weight", "b.weight", "c.weight"]).0, Cause::Unknown);
        let (cause, text) = of(&["a", "b"], &[]);
        assert_eq!(cause, Cause::Unknown);
        assert!(text.starts_with("2 of 2 variables got no gradient in the first step: a, b;"), "{text}");
    }
}
