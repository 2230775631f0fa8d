//! The formulas of all rules, one file each.

mod adagrad;
mod adam;
mod adamw;
mod ftrl;
mod momentum;
mod rmsprop;
mod sgd;

use crate::{Rule, RuleSpec};
use std::sync::Arc;

impl RuleSpec {
    /// Returns the rule. Its hyper-parameters may be out of range: see [`Rule::validate`].
    pub fn rule(&self) -> Arc<dyn Rule> {
        match *self {
            Self::Sgd(rule) => Arc::new(rule),
            Self::Momentum(rule) => Arc::new(rule),
            Self::Adam(rule) => Arc::new(rule),
            Self::AdamW(rule) => Arc::new(rule),
            Self::Adagrad(rule) => Arc::new(rule),
            Self::RmsProp(rule) => Arc::new(rule),
            Self::Ftrl(rule) => Arc::new(rule),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Adagrad, Adam, AdamW, Ftrl, Momentum, RmsProp, Sgd};

    #[test]
    fn every_rule_comes_back_from_its_data() {
        let rules: [Arc<dyn Rule>; 8] = [
            Arc::new(Sgd),
            Arc::new(Momentum::nesterov(0.5)),
            Arc::new(Adam { beta1: 0.25, ..Adam::default() }),
            Arc::new(Adam::lazy()),
            Arc::new(AdamW { weight_decay: 0.1, ..AdamW::default() }),
            Arc::new(Adagrad { epsilon: 0.5, ..Adagrad::default() }),
            Arc::new(RmsProp { rho: 0.125, ..RmsProp::default() }),
            Arc::new(Ftrl { l1: 0.1, beta: 2.0, ..Ftrl::default() }),
        ];
        for rule in rules {
            let text = serde_json::to_string(&rule.spec().unwrap()).unwrap();
            let back: RuleSpec = serde_json::from_str(&text).unwrap();
            assert_eq!(format!("{:?}", back.rule()), format!("{rule:?}"));
        }
    }
}
