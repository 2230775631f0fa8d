//! The update of variables on parameter servers: gradients are sent there, and applied by the same rules where the variables are.

use super::Trained;
use super::progress::Change;
use super::rules_of_step::Rules;
use super::together::Together;
use super::transform::Transform;
use super::updater::Updater;
use candle_core::Var;
use distribute_base::internal::LocalGradient;
use distribute_base::{Error, Result};
use distribute_core::Variable;
use distribute_optim::{Rule, RuleSpec};
use distribute_params::Push;
use distribute_ps_client::internal::{Gradient, RemoteVariable};
use distribute_tensor::Leaf;
use std::sync::Arc;

pub(super) const OPERATION: &str = "optimizer step";

/// The variables of an optimizer, if they are on parameter servers.
#[derive(Debug)]
pub(super) struct Remote {
    /// In the order of those that are trained.
    pub(super) variables: Vec<(Variable, Arc<RemoteVariable>)>,
}

impl Remote {
    /// `None` if variables are in this process.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: a variable is not the strategy's, and gradients would be sent to others.
    pub(super) fn new(
        strategy: &distribute_core::Strategy,
        variables: &[(String, Var)],
    ) -> Result<Option<Self>> {
        if strategy.session().is_none() {
            return Ok(None);
        }
        let on_servers = |(name, var): &(String, Var)| {
            let reason = || {
                format!(
                    "variable {name} is not on the servers of its strategy any more, or never was; keep its model"
                )
            };
            let found = strategy.container(var.id()).and_then(|variable| {
                let remote = variable.remote()?.clone();
                Some((variable, remote))
            });
            found.ok_or_else(|| Error::invalid(OPERATION, reason()))
        };
        Ok(Some(Self { variables: variables.iter().map(on_servers).collect::<Result<_>>()? }))
    }

    /// Whether the rows of a variable are ids.
    pub(super) fn is_dynamic(&self, number: usize) -> bool {
        self.variables.get(number).is_some_and(|(_, remote)| remote.ids().is_some())
    }
}

/// A rule as it is sent to servers; refuses one that cannot be.
pub(super) fn require_rule<R: Rule + ?Sized>(operation: &'static str, rule: &R) -> Result<RuleSpec> {
    rule.spec().ok_or(Error::NotSupported {
        operation,
        strategy: "ParameterServerStrategy",
        what: "rules of one's own, since variables are updated on servers, to which no code is sent",
        advice: "use one of distribute's rules, and change gradients by Transform::each",
    })
}

/// Refuses a transform that needs what no worker has.
pub(super) fn require_transform(
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
    if transform.closure().is_some() && remote.variables.iter().any(|(_, remote)| remote.ids().is_some()) {
        return refused(
            "Transform::each where a table of ids is trained",
            "freeze it, and train it by an optimizer of its own",
        );
    }
    if transform.reads_values() && remote.variables.iter().any(|(_, remote)| remote.is_fetched_by_row()) {
        return refused(
            "weight decay of tables of which only rows are fetched",
            "freeze them, or use AdamW, whose rule decays where the table is",
        );
    }
    Ok(())
}

/// Sends gradients to servers.
pub(super) struct OnServers<'a> {
    pub(super) rules: Rules<'a>,
    pub(super) trained: &'a Trained,
    pub(super) remote: &'a Remote,
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
            let Some(session) = self.trained.strategy.session() else { return Ok(()) };
            // What comes after it in the same run computes with the new values.
            let made = || {
                change.step_made();
                session.count_step(change.counter());
            };
            session.push(OPERATION, self.gradients(gradients)?, made)
        })
    }
}

impl<'a> OnServers<'a> {
    /// The gradients as they are pushed to servers.
    fn gradients(&self, gradients: &[Option<LocalGradient>]) -> Result<Vec<Gradient<'a>>> {
        let variables: &'a [_] = &self.remote.variables;
        if let Some((variable, _)) = variables.iter().find(|(_, remote)| !remote.is_ready()) {
            let reason = format!(
                "variable {} has been used as a whole before its values were fetched, which has failed; look at the servers, and make \
                 the step again",
                variable.name()
            );
            return Err(Error::invalid(OPERATION, reason));
        }
        let one = |(number, gradient): (usize, &LocalGradient)| {
            let ((rule, step), (_, var)) = (self.rules.of(number), &self.trained.variables[number]);
            let (push, (_, remote)) = (Push::at(step).counted(), &variables[number]);
            let spec = require_rule(OPERATION, rule)?;
            let dense = match gradient {
                LocalGradient::Dense(dense) => dense.clone(),
                LocalGradient::Deposited(dense) => dense.tensor(var)?,
                LocalGradient::Rows(rows) => {
                    let gradient =
                        |positions: &[usize]| rows.take(positions, var.dims().get(1..).unwrap_or_default());
                    return Gradient::rows(
                        remote,
                        spec,
                        push,
                        &rows.rows,
                        gradient,
                        rule.moves_absent_rows(),
                    );
                }
            };
            Gradient::dense(remote, spec, push, &Leaf::Candle(dense).to_host()?)
        };
        let found = gradients.iter().enumerate();
        found.filter_map(|(number, gradient)| Some((number, gradient.as_ref()?))).map(one).collect()
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
