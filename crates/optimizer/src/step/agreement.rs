//! Compares the settings of an optimizer between workers. Settings that differ would change weights on some workers
//! only, or add the gradient of one variable to another's, so no step is made then.
//!
//! The first step after a setting was made has a digest of all settings in its header. Where digests differ, or some
//! workers have none, since they have compared theirs before, the workers exchange the settings themselves, in the same
//! call.

use crate::Inner;
use crate::header::StepHeader;
use crate::rate::Rate;
use crate::transform::Transform;
use candle_core::Var;
use distribute_base::{Error, Result};
use distribute_collective::Failure;
use distribute_collective::group::GroupCall;
use distribute_core::internal::{Settings, differences, digest, record};
use distribute_optim::Rule;
use distribute_tensor::Leaf;
use std::sync::atomic::Ordering;

/// Returns whether the settings themselves have to be exchanged, by the headers of all replicas: the same on all
/// workers.
fn is_open(headers: &[StepHeader]) -> bool {
    let mut digests = headers.iter().filter_map(|header| header.position.as_ref()).map(|at| at.settings);
    let Some(first) = digests.next() else { return false };
    digests.any(|digest| digest != first)
}

/// Exchanges settings where the headers don't show that all have the same. Returns what differs, in words that are the
/// same on all workers.
pub(crate) fn differing(
    calling: &mut GroupCall<'_>,
    headers: &[StepHeader],
    mine: impl FnOnce() -> Settings,
) -> Result<Option<String>, Failure> {
    if !is_open(headers) {
        return Ok(None);
    }
    let records = calling.all_gather_bytes(record::encode(&mine()))?;
    // What cannot be read differs from everything.
    let all: Vec<Settings> = records
        .iter()
        .map(|record| {
            let unreadable = || vec![("settings".to_owned(), "of another program".to_owned())];
            postcard::from_bytes(record).unwrap_or_else(|_| unreadable())
        })
        .collect();
    Ok(differences(&all))
}

/// The error of a step whose optimizers differ.
pub(crate) fn refused(operation: &'static str, differences: &str) -> Error {
    let reason = format!(
        "the workers have set this optimizer differently: {differences}; no variable has changed; make the model and the optimizer \
         with the same settings, in the same order, on all workers"
    );
    Error::invalid(operation, reason)
}

impl Inner {
    /// Returns the digest of all settings, for the header of a step; `None` if the workers have compared them.
    pub(crate) fn digest_to_compare(&self) -> Option<u64> {
        (!self.agreed.load(Ordering::Relaxed)).then(|| digest(&self.settings()))
    }

    /// Returns all settings that have to be the same on all workers. The learning rate is compared in each step as
    /// well.
    pub(crate) fn settings(&self) -> Settings {
        let mut all = of_rule(self.groups.rule());
        for (number, (name, variable)) in self.parameters.variables.iter().enumerate() {
            all.push((of_variable(name), format!("trained {}", described(variable))));
            let (factor, rule) = self.groups.of(number);
            if factor != 1. {
                all.push((format!("rate_factor of {name}"), factor.to_string()));
            }
            if let Some(rule) = rule {
                all.push((format!("rule of {name}"), without_addresses(&format!("{rule:?}"))));
            }
        }
        for (name, variable) in &self.parameters.frozen {
            all.push((of_variable(name), format!("frozen {}", described(variable))));
        }
        let rate = match self.rate {
            Rate::Set(_) => "set by hand",
            Rate::Schedule(_) => "from a schedule",
        };
        let transforms = |all: &[Transform]| format!("{all:?}");
        let others = [
            ("learning rate", rate.to_owned()),
            ("before_reduce", transforms(&self.before_reduce)),
            ("after_reduce", transforms(&self.after_reduce)),
            ("on_missing_gradients", format!("{:?}", self.missing_gradients)),
            ("on_not_finite", format!("{:?}", self.not_finite)),
            ("sharded_state", self.parameters.partition.as_ref().is_some().to_string()),
        ];
        all.extend(others.map(|(name, value)| (name.to_owned(), value)));
        all
    }
}

/// Returns the rule and its hyper-parameters, each by its name if the rule is one of this crate's.
fn of_rule(rule: &dyn Rule) -> Settings {
    let spec = rule.spec().and_then(|spec| serde_json::to_value(spec).ok());
    let parameters = spec.as_ref().and_then(|spec| spec.as_object()?.values().next()?.as_object());
    match parameters {
        Some(parameters) => {
            let name = ("rule".to_owned(), rule.name().to_owned());
            let parameter = |(name, value): (&String, &serde_json::Value)| (name.clone(), value.to_string());
            [name].into_iter().chain(parameters.iter().map(parameter)).collect()
        }
        None => vec![("rule".to_owned(), without_addresses(&format!("{} ({rule:?})", rule.name())))],
    }
}

fn of_variable(name: &str) -> String {
    format!("variable {name}")
}

fn described(variable: &Var) -> String {
    Leaf::Candle(variable.as_tensor().clone()).describe()
}

/// Replaces addresses, such as those of functions, which each process has of its own.
// INV-26
fn without_addresses(text: &str) -> String {
    let mut parts = text.split("0x");
    let mut cleaned = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        cleaned.push_str("0x…");
        cleaned.push_str(part.trim_start_matches(|digit: char| digit.is_ascii_hexdigit()));
    }
    cleaned
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules;

    fn names(settings: &Settings) -> Vec<String> {
        settings.iter().map(|(name, value)| format!("{name}={value}")).collect()
    }

    #[test]
    fn hyper_parameters_of_known_rules_have_names() {
        let of = names(&of_rule(&rules::Momentum::nesterov(0.5)));
        assert_eq!(of, ["rule=momentum", "momentum=0.5", "nesterov=true"]);
        assert_eq!(names(&of_rule(&rules::Sgd)), ["rule=sgd (Sgd)"]);
    }

    // INV-26
    #[test]
    fn addresses_are_no_setting() {
        let (one, other) = ("F { f: 0x55d0aaB1, n: 1 }", "F { f: 0x7ff0, n: 1 }");
        assert_eq!(without_addresses(one), without_addresses(other));
        assert_ne!(without_addresses(one), without_addresses("F { f: 0x7ff0, n: 2 }"));
        assert_eq!(without_addresses("Adam { beta1: 0.9 }"), "Adam { beta1: 0.9 }");
    }
}
