//! The update of variables on parameter servers: gradients are sent there, and applied by the same rules where the variables are.

pub(crate) mod slots;

use crate::Trained;
use crate::progress::Change;
use crate::rules_of_step::Rules;
use crate::sync::Together;
use crate::transform::Transform;
use crate::update::Updater;
use candle_core::Var;
use distribute_base::internal::{LocalGradient, lock};
use distribute_base::{Error, Result};
use distribute_core::Variable;
use distribute_core::internal::set_rules;
use distribute_optim::{Rule, RuleSpec};
use distribute_params::Push;
use distribute_ps_client::internal::Ask;
use distribute_tensor::{HostTensor, Leaf};
use std::sync::{Arc, Mutex};

pub(crate) const OPERATION: &str = "optimizer step";

/// The variables of an optimizer, where they are on parameter servers.
#[derive(Debug)]
pub(crate) struct Remote {
    /// In the order of those that are trained.
    pub(crate) variables: Vec<Variable>,
    /// By which rule servers update each.
    ruled: Mutex<Vec<Option<RuleSpec>>>,
}

impl Remote {
    /// `None` where variables are in this process.
    ///
    /// # Errors
    /// Where one of them is not the strategy's: gradients would be sent to others.
    pub(crate) fn new(
        strategy: &distribute_core::Strategy,
        variables: &[(String, Var)],
    ) -> Result<Option<Self>> {
        if strategy.extended().parameter_servers().is_none() {
            return Ok(None);
        }
        let on_servers = |(name, var): &(String, Var)| {
            let reason = || {
                format!(
                    "variable {name} is not on the servers of its strategy any more, or never was; keep its model"
                )
            };
            strategy.container(var.id()).ok_or_else(|| Error::invalid(OPERATION, reason()))
        };
        let variables = variables.iter().map(on_servers).collect::<Result<Vec<_>>>()?;
        let ruled = Mutex::new(vec![None; variables.len()]);
        Ok(Some(Self { variables, ruled }))
    }

    /// Sees to it that servers know the rule of each variable that has one, and make its slots.
    pub(crate) fn bind(&self, rules: &[Option<RuleSpec>]) -> Result<()> {
        let mut ruled = lock(&self.ruled);
        let new = |(number, rule): (usize, &Option<RuleSpec>)| {
            let rule = rule.filter(|rule| ruled.get(number) != Some(&Some(*rule)))?;
            Some((number, rule))
        };
        let new: Vec<(usize, RuleSpec)> = rules.iter().enumerate().filter_map(new).collect();
        set_rules(OPERATION, new.iter().map(|(number, rule)| (&self.variables[*number], *rule)))?;
        new.into_iter().for_each(|(number, rule)| ruled[number] = Some(rule));
        Ok(())
    }

    /// A server knows them no more: it is told again before the next step.
    fn forget_rules(&self) {
        lock(&self.ruled).fill(None);
    }

    /// Whether the rows of a variable are ids.
    pub(crate) fn is_dynamic(&self, number: usize) -> bool {
        self.variables.get(number).is_some_and(Variable::is_dynamic)
    }

    /// What the rule keeps beside a variable, by name.
    pub(crate) fn slots(&self, number: usize, count: usize) -> Result<Vec<(String, HostTensor)>> {
        self.variables[number].slots_on_servers(OPERATION, count)
    }
}

/// A rule as it is sent to servers; refuses one that cannot be.
pub(crate) fn require_rule<R: Rule + ?Sized>(operation: &'static str, rule: &R) -> Result<RuleSpec> {
    rule.spec().ok_or(Error::NotSupported {
        operation,
        strategy: "ParameterServerStrategy",
        what: "rules of one's own, since variables are updated on servers, to which no code is sent",
        advice: "use one of distribute's rules, and change gradients by Transform::each",
    })
}

/// Refuses a transform that needs what no worker has.
pub(crate) fn require_transform(
    operation: &'static str,
    transform: &Transform,
    trained: &Trained,
) -> Result<()> {
    let refused = |what, advice| {
        Err(Error::NotSupported { operation, strategy: "ParameterServerStrategy", what, advice })
    };
    let Some(remote) = &trained.remote else { return Ok(()) };
    if transform.needs_all_gradients() {
        return refused(
            "clipping by the global norm, since no worker has the gradients of all",
            "clip the gradient of each variable, by Transform::clip_by_norm",
        );
    }
    if transform.closure().is_some() && remote.variables.iter().any(Variable::is_dynamic) {
        return refused(
            "Transform::each where a table of ids is trained",
            "freeze it, and train it by an optimizer of its own",
        );
    }
    if transform.reads_values() && remote.variables.iter().any(Variable::is_fetched_by_row) {
        return refused(
            "weight decay of tables of which only rows are fetched",
            "freeze them, or use AdamW, whose rule decays where the table is",
        );
    }
    Ok(())
}

/// Sends gradients to servers.
pub(crate) struct OnServers<'a> {
    pub(crate) rules: Rules<'a>,
    pub(crate) trained: &'a Trained,
    pub(crate) remote: &'a Remote,
}

impl Updater for OnServers<'_> {
    fn apply(
        &self,
        together: &Together<'_>,
        gradients: &Arc<Vec<Option<LocalGradient>>>,
        change: Option<&Change<'_>>,
    ) -> Result<()> {
        // Nobody leads twice before all have seen what came of the first time.
        together.each("its update on servers", |_| Ok(()))?;
        together.lead(|_| {
            let Some(change) = change else { return Ok(()) };
            let strategy = &self.trained.strategy;
            let Some(servers) = strategy.extended().parameter_servers() else { return Ok(()) };
            // What comes after it in the same run computes with the new values.
            let made = || {
                change.step_made();
                servers.made_step(change.counter());
            };
            let pushed = strategy.push(OPERATION, servers, self.asks(gradients)?, made);
            if pushed.as_ref().is_err_and(Error::is_of_a_rule) {
                self.remote.forget_rules();
            }
            pushed
        })
    }
}

impl OnServers<'_> {
    /// What servers are asked for, so that they apply the gradients.
    fn asks(&self, gradients: &[Option<LocalGradient>]) -> Result<Vec<(Ask, RuleSpec)>> {
        let Remote { variables, .. } = self.remote;
        if let Some(variable) = variables.iter().find(|variable| !variable.is_ready()) {
            let reason = format!(
                "variable {} has been used as a whole before its values were fetched, which has failed; look at the servers, and make \
                 the step again",
                variable.name()
            );
            return Err(Error::invalid(OPERATION, reason));
        }
        let rules = gradients
            .iter()
            .enumerate()
            .map(|(number, gradient)| gradient.as_ref().and_then(|_| self.rules.of(number).0.spec()));
        self.remote.bind(&rules.collect::<Vec<_>>())?;
        let mut asks = Vec::new();
        for (number, gradient) in gradients.iter().enumerate() {
            let Some(gradient) = gradient else { continue };
            let ((rule, step), (_, var)) = (self.rules.of(number), &self.trained.variables[number]);
            let (push, variable) = (Push::at(step).counted(), &variables[number]);
            let spec = require_rule(OPERATION, rule)?;
            let of_shards = match gradient {
                LocalGradient::Dense(dense) => {
                    variable.push(push, &Leaf::Candle(dense.clone()).to_host()?)?
                }
                LocalGradient::Deposited(dense) => {
                    variable.push(push, &Leaf::Candle(dense.tensor(var)?).to_host()?)?
                }
                LocalGradient::Rows(rows) => {
                    let gradient =
                        |positions: &[usize]| rows.take(positions, var.dims().get(1..).unwrap_or_default());
                    variable.push_rows(push, &rows.rows, gradient, rule.moves_absent_rows())?
                }
            };
            asks.extend(of_shards.into_iter().map(|ask| (ask, spec)));
        }
        Ok(asks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_parameter_server::{LocalCluster, ParameterServerStrategy};
    use distribute_params::FixedShardsPartitioner;

    #[test]
    fn a_variable_that_is_not_on_servers_is_an_error_and_no_gap() {
        let cluster = LocalCluster::new(1, 1).unwrap();
        let partitioner = FixedShardsPartitioner::new(1).unwrap();
        let strategy = ParameterServerStrategy::new(cluster.resolver(), partitioner).unwrap();
        let stray = Var::zeros(2, candle_core::DType::F32, &candle_core::Device::Cpu).unwrap();
        let error = Remote::new(&strategy, &[("stray".to_owned(), stray)]).unwrap_err().to_string();
        assert!(error.contains("variable stray is not on the servers"), "{error}");
        assert!(Remote::new(&strategy, &[]).unwrap().is_some());
    }
}
