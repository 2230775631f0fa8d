//! The update of variables on parameter servers: gradients are sent there, and applied by the same rules where the
//! variables are.

mod slots;

use crate::parameters::Parameters;
use crate::progress::Change;
use crate::sync::StepSync;
use crate::update::{Backend, Pass, Saved, Update, When};
use crate::{Inner, Transform};
use candle_core::{Device, Tensor, Var};
use distribute_base::internal::ReplicaGradient;
use distribute_base::{Error, Result};
use distribute_checkpoint::{Reader, Writer};
use distribute_core::{Strategy, Variable};
use distribute_optim::{Rule, RuleSpec};
use distribute_ps_client::internal::{PushRequests, RemoteVariable};
use distribute_ps_tables::Push;
use distribute_tensor::Leaf;
use std::panic::Location;
use std::sync::Arc;

const OPERATION: &str = "optimizer step";

/// Sends gradients to servers, where the variables are.
#[derive(Debug)]
pub(crate) struct Servers {
    /// The trained variables, in their order.
    variables: Vec<(Variable, Arc<RemoteVariable>)>,
}

impl Backend for Servers {
    fn is_one_pass(&self, _optimizer: &Inner) -> bool {
        false
    }

    fn reduce_and_apply(&self, update: &Update<'_>, _pass: &Pass<'_>) -> Result<()> {
        Err(Error::invalid(update.operation, "gradients go to servers whole, after they are reduced"))
    }

    fn apply(
        &self,
        update: &Update<'_>,
        sync: &StepSync<'_>,
        gradients: &Arc<Vec<Option<ReplicaGradient>>>,
        change: Option<&Change<'_>>,
    ) -> Result<()> {
        // Nobody leads twice before all have seen what came of the first time.
        sync.run_on_each("its update on servers", |_| Ok(()))?;
        sync.run_on_leader(|_| {
            let Some(change) = change else { return Ok(()) };
            let Some(session) = update.parameters().strategy.session() else { return Ok(()) };
            // What comes after it in the same run computes with the new values.
            let made = || {
                change.commit();
                session.count_step(change.counter());
            };
            session.push(OPERATION, self.requests(update, gradients)?, made)
        })
    }

    fn kept(&self, _: &Parameters, _variable: usize, _elements: usize) -> usize {
        0
    }

    fn slot(
        &self,
        optimizer: &Inner,
        variable: usize,
        slot: usize,
        _at: &'static Location<'static>,
    ) -> Result<Tensor> {
        if self.is_dynamic(variable) {
            return Err(Error::NotSupported {
                operation: "slot",
                strategy: "ParameterServerStrategy",
                what: "slots of a table of ids as one tensor",
                advice: "take them from Variable::dynamic_rows",
            });
        }
        Ok(self.slots(optimizer, variable)?[slot].to_candle(&Device::Cpu)?)
    }

    fn save(&self, optimizer: &Inner, prefix: &str, writer: &mut Writer) -> Result<()> {
        self.save_slots(optimizer, prefix, writer)
    }

    fn restore<'a>(
        &'a self,
        optimizer: &'a Inner,
        prefix: &str,
        names: &[Vec<String>],
        from: &Reader,
    ) -> Result<Saved<'a>> {
        self.saved_slots(optimizer, prefix, names, from)
    }

    fn require_rule(&self, operation: &'static str, rule: &dyn Rule) -> Result<()> {
        spec(operation, rule).map(drop)
    }

    fn require_transform(&self, operation: &'static str, when: When, transform: &Transform) -> Result<()> {
        let refused = |what, advice| {
            Err(Error::NotSupported { operation, strategy: "ParameterServerStrategy", what, advice })
        };
        if when == When::AfterReduce && transform.needs_all_gradients() {
            return refused(
                "clipping by the global norm, since no worker has the gradients of all",
                "clip the gradient of each variable, by Transform::clip_by_norm",
            );
        }
        if transform.closure().is_some() && (0..self.variables.len()).any(|number| self.is_dynamic(number)) {
            return refused(
                "Transform::each where a table of ids is trained",
                "freeze it, and train it by an optimizer of its own",
            );
        }
        if transform.reads_values() && self.variables.iter().any(|(_, remote)| remote.is_fetched_by_row()) {
            return refused(
                "weight decay of tables of which only rows are fetched",
                "freeze them, or use AdamW, whose rule decays where the table is",
            );
        }
        Ok(())
    }
}

impl Servers {
    /// The variables of an optimizer, by name.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if one of them is not the strategy's: gradients would be sent to others.
    pub(crate) fn new(strategy: &Strategy, variables: &[(String, Var)]) -> Result<Self> {
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
        Ok(Self { variables: variables.iter().map(on_servers).collect::<Result<_>>()? })
    }

    /// Returns whether the rows of a variable are ids.
    fn is_dynamic(&self, number: usize) -> bool {
        self.variables.get(number).is_some_and(|(_, remote)| remote.ids().is_some())
    }

    /// The requests by which servers apply the gradients.
    fn requests(
        &self,
        update: &Update<'_>,
        gradients: &[Option<ReplicaGradient>],
    ) -> Result<Vec<PushRequests<'_>>> {
        if let Some((variable, _)) = self.variables.iter().find(|(_, remote)| !remote.is_ready()) {
            let reason = format!(
                "variable {} has been used as a whole before its values were fetched, which has failed; look at the servers, and make \
                 the step again",
                variable.name()
            );
            return Err(Error::invalid(OPERATION, reason));
        }
        let one = |(number, gradient): (usize, &ReplicaGradient)| {
            let ((rule, step), (_, var)) = (update.rules.of(number), &update.parameters().variables[number]);
            let (push, (_, remote)) = (Push::at(step).counted(), &self.variables[number]);
            let spec = spec(OPERATION, rule)?;
            match gradient {
                ReplicaGradient::Dense(dense) => {
                    PushRequests::dense(remote, spec, push, &Leaf::Candle(dense.tensor(var)?).to_host()?)
                }
                ReplicaGradient::Rows(rows) => {
                    let gradient =
                        |positions: &[usize]| rows.take(positions, var.dims().get(1..).unwrap_or_default());
                    PushRequests::rows(remote, spec, push, &rows.rows, gradient, rule.moves_absent_rows())
                }
            }
        };
        let found = gradients.iter().enumerate();
        found.filter_map(|(number, gradient)| Some((number, gradient.as_ref()?))).map(one).collect()
    }
}

/// A rule as it is sent to servers; refuses one that cannot be.
fn spec(operation: &'static str, rule: &dyn Rule) -> Result<RuleSpec> {
    rule.spec().ok_or(Error::NotSupported {
        operation,
        strategy: "ParameterServerStrategy",
        what: "rules of one's own, since variables are updated on servers, to which no code is sent",
        advice: "use one of distribute's rules, and change gradients by Transform::each",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_parameter_server::{LocalCluster, ParameterServerStrategy};
    use distribute_ps_tables::FixedShardsPartitioner;

    #[test]
    fn a_variable_that_is_not_on_servers_is_an_error_and_no_gap() {
        let cluster = LocalCluster::new(1, 1).unwrap();
        let partitioner = FixedShardsPartitioner::new(1).unwrap();
        let strategy = ParameterServerStrategy::new(cluster.resolver(), partitioner).unwrap();
        let stray = Var::zeros(2, candle_core::DType::F32, &candle_core::Device::Cpu).unwrap();
        let error = Servers::new(&strategy, &[("stray".to_owned(), stray)]).unwrap_err().to_string();
        assert!(error.contains("variable stray is not on the servers"), "{error}");
        assert!(Servers::new(&strategy, &[]).is_ok());
    }
}
