//! The comparison of an optimizer's settings between workers. With different settings, weights could change on some
//! workers only, or the gradient of one variable could be added to that of another. Therefore no step is made if
//! settings differ.
//!
//! In the first step after a setting was changed, headers contain a digest of all settings. If digests differ, or if
//! some workers send none because they have already compared theirs, the workers exchange the settings themselves in
//! the same call.

use crate::Inner;
use crate::header::StepHeader;
use crate::rate::Rate;
use crate::transform::Transform;
use candle_core::Var;
use distribute_base::{Error, ErrorKind, Result};
use distribute_collective::Failure;
use distribute_collective::group::GroupCall;
use distribute_core::internal::wire;
use distribute_decisions::internal::{Settings, differences, digest};
use distribute_optim::Rule;
use distribute_tensor::Leaf;
use std::sync::atomic::Ordering;

/// Returns `true` if the settings themselves must be exchanged. The result depends on the headers of all replicas, so
/// it is the same on all workers.
fn needs_exchange(headers: &[StepHeader]) -> bool {
    let mut digests = headers.iter().filter_map(|header| header.position.as_ref()).map(|at| at.settings);
    let Some(first) = digests.next() else { return false };
    digests.any(|digest| digest != first)
}

/// Exchanges settings, unless the headers show that they are the same on all workers. Returns a message with the
/// differences, or `None` if there are none. The result is the same on all workers.
pub(crate) fn find_differences(
    calling: &mut GroupCall<'_>,
    headers: &[StepHeader],
    mine: impl FnOnce() -> Settings,
) -> Result<Option<String>, Failure> {
    if !needs_exchange(headers) {
        return Ok(None);
    }
    exchange_settings(calling, &mine())
}

/// Exchanges settings. Returns a message with the differences, or `None` if there are none. The result is the same on
/// all workers.
pub(crate) fn exchange_settings(
    calling: &mut GroupCall<'_>,
    mine: &Settings,
) -> Result<Option<String>, Failure> {
    let records = calling.all_gather_bytes(wire::encode(mine))?;
    // Settings that cannot be read differ from all others.
    let all: Vec<Settings> = records
        .iter()
        .map(|record| {
            let unreadable = || vec![("settings".to_owned(), "of another program".to_owned())];
            postcard::from_bytes(record).unwrap_or_else(|_| unreadable())
        })
        .collect();
    Ok(differences(&all))
}

/// Returns the error of a step in which the workers' settings differ.
pub(crate) fn differences_error(operation: &'static str, differences: &str) -> Error {
    let reason = format!(
        "the workers have different settings of this optimizer: {differences}; no variable has changed; create the \
         model and the optimizer with the same settings, in the same order, on all workers"
    );
    Error::failed(ErrorKind::Disagreement, operation, reason)
}

impl Inner {
    /// Returns the digest of all settings, for the header of a step. Returns `None` if the workers have already
    /// compared them.
    pub(crate) fn digest_to_compare(&self) -> Option<u64> {
        (!self.settings_compared.load(Ordering::Relaxed)).then(|| digest(&self.settings()))
    }

    /// Returns all settings that must be the same on all workers. The value of the learning rate is not included,
    /// because it is compared in each step.
    pub(crate) fn settings(&self) -> Settings {
        let mut all = rule_settings(self.groups.rule());
        for (number, (name, variable)) in self.parameters.variables.iter().enumerate() {
            all.push((variable_setting(name), format!("trained {}", describe_variable(variable))));
            let (factor, rule) = self.groups.of(number);
            if factor != 1. {
                all.push((format!("rate_factor of {name}"), factor.to_string()));
            }
            if let Some(rule) = rule {
                all.push((format!("rule of {name}"), without_addresses(&format!("{rule:?}"))));
            }
        }
        for (name, variable) in &self.parameters.frozen {
            all.push((variable_setting(name), format!("frozen {}", describe_variable(variable))));
        }
        let rate = match self.rate {
            Rate::Constant(_) => "set by hand",
            Rate::Schedule(_) => "from a schedule",
        };
        let transforms = |all: &[Transform]| format!("{all:?}");
        let others = [
            ("learning rate", rate.to_owned()),
            ("before_reduce", transforms(&self.before_reduce)),
            ("after_reduce", transforms(&self.after_reduce)),
            ("on_missing_gradients", format!("{:?}", self.missing_gradients)),
            ("on_not_finite", format!("{:?}", self.not_finite)),
            ("loss scale", format!("{:?}", self.loss_scaling.setting())),
            ("mixed precision", format!("{:?}", self.parameters.strategy.mixed_precision())),
            ("compression", self.parameters.compression().to_string()),
            ("shard_state", self.parameters.partition.as_ref().is_some().to_string()),
            ("shard_state_replicated", self.backend.replicated().is_some().to_string()),
        ];
        all.extend(others.map(|(name, value)| (name.to_owned(), value)));
        all
    }
}

/// Returns the rule and its hyper-parameters as settings. For a built-in rule, each hyper-parameter is a separate
/// setting.
fn rule_settings(rule: &dyn Rule) -> Settings {
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

fn variable_setting(name: &str) -> String {
    format!("variable {name}")
}

fn describe_variable(variable: &Var) -> String {
    Leaf::Candle(variable.as_tensor().clone()).describe()
}

/// Replaces addresses in a text, such as the addresses of functions. They differ between processes, so the workers'
/// settings would otherwise never be equal.
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
    fn hyperparameters_of_builtin_rules_have_names() {
        let of = names(&rule_settings(&rules::Momentum::nesterov(0.5)));
        assert_eq!(of, ["rule=momentum", "momentum=0.5", "nesterov=true"]);
        assert_eq!(names(&rule_settings(&rules::Sgd)), ["rule=sgd (Sgd)"]);
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
