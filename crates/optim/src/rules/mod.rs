//! The formulas of all rules, in one file each.

mod adafactor;
mod adagrad;
mod adam;
mod adamw;
mod ftrl;
mod lamb;
mod lion;
mod momentum;
mod nadam;
mod rmsprop;
mod row_adagrad;
mod sgd;

use crate::{Averaged, Rule, RuleSpec};
use std::sync::Arc;

impl RuleSpec {
    /// Creates the rule with the specified hyper-parameters, which may be out of range; see [`Rule::validate`].
    pub fn rule(&self) -> Arc<dyn Rule> {
        match self.clone() {
            Self::Sgd(rule) => Arc::new(rule),
            Self::Momentum(rule) => Arc::new(rule),
            Self::Adam(rule) => Arc::new(rule),
            Self::AdamW(rule) => Arc::new(rule),
            Self::Adagrad(rule) => Arc::new(rule),
            Self::RmsProp(rule) => Arc::new(rule),
            Self::Ftrl(rule) => Arc::new(rule),
            Self::NAdam(rule) => Arc::new(rule),
            Self::Lion(rule) => Arc::new(rule),
            Self::RowAdagrad(rule) => Arc::new(rule),
            Self::Lamb(rule) => Arc::new(rule),
            Self::Adafactor(rule) => Arc::new(rule),
            Self::Averaged { ema_momentum, of } => {
                Arc::new(Averaged { rule: of.rule(), momentum: ema_momentum })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Adafactor, Adagrad, Adam, AdamW, Ftrl, Lamb, Lion, Momentum, NAdam, RmsProp, RowAdagrad, Sgd,
    };

    #[test]
    fn an_average_of_an_average_is_not_decoded() {
        let average = |of| RuleSpec::Averaged { ema_momentum: 0.5, of: Box::new(of) };
        let decode =
            |spec: &RuleSpec| serde_json::from_str::<RuleSpec>(&serde_json::to_string(spec).unwrap());
        let once = average(RuleSpec::Sgd(Sgd));
        assert!(decode(&average(once.clone())).is_err());
        // The error does not affect what is decoded next.
        assert_eq!(decode(&once).unwrap(), once);
    }

    #[test]
    fn every_rule_comes_back_from_its_data() {
        let rules: [Arc<dyn Rule>; 14] = [
            Arc::new(Sgd),
            Arc::new(Momentum::nesterov(0.5)),
            Arc::new(Adam { beta1: 0.25, ..Adam::default() }),
            Arc::new(Adam::lazy()),
            Arc::new(AdamW { weight_decay: 0.1, ..AdamW::default() }),
            Arc::new(Adagrad { epsilon: 0.5, ..Adagrad::default() }),
            Arc::new(RmsProp { rho: 0.125, ..RmsProp::default() }),
            Arc::new(Ftrl { l1: 0.1, beta: 2.0, ..Ftrl::default() }),
            Arc::new(NAdam { beta2: 0.5, ..NAdam::default() }),
            Arc::new(Lion { weight_decay: 0.5, ..Lion::default() }),
            Arc::new(RowAdagrad { epsilon: 0.5, ..RowAdagrad::default() }),
            Arc::new(Adafactor { relative_step: false, ..Adafactor::default() }),
            Arc::new(Lamb { weight_decay: 0.5, ..Lamb::default() }),
            Arc::new(Averaged { rule: Arc::new(Adam::lazy()), momentum: 0.75 }),
        ];
        for rule in rules {
            let text = serde_json::to_string(&rule.spec().unwrap()).unwrap();
            let back: RuleSpec = serde_json::from_str(&text).unwrap();
            assert_eq!(format!("{:?}", back.rule()), format!("{rule:?}"));
        }
    }
}
