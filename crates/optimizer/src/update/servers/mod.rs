//! The update of variables on parameter servers. Gradients are reduced as with the other backends, and then sent to the
//! servers, which apply them with the same rules.
//!
//! [`Session::push`](distribute_ps_client::internal::Session::push) sends one gradient per variable, with the step
//! number and the learning rate. If the servers store only tables, all workers push together ([`lock_step`]), and other
//! variables are updated here.

// - INV-56: by INV-8 and INV-11, and because gradients are reduced by the same code. Tests:
//   `parameter_servers/training.rs`, `parameter_servers/checkpoint.rs`, `parameter_servers/dynamic.rs`.

mod lock_step;
mod slots;

use crate::parameters::Parameters;
use crate::progress::Change;
use crate::sync::StepSync;
use crate::update::{self, Backend, Pass, Saved, Update, When};
use crate::{Inner, Transform};
use candle_core::{Device, Tensor, Var};
use distribute_base::internal::ReplicaGradient;
use distribute_base::{Error, Result};
use distribute_checkpoint::{Reader, Writer};
use distribute_core::{Strategy, Variable};
use distribute_decisions::internal::SlotShare;
use distribute_optim::{Rule, RuleSpec, Unit};
use distribute_ps_client::internal::{PushRequests, RemoteVariable};
use distribute_ps_tables::Push;
use distribute_tensor::Leaf;
use std::panic::Location;
use std::sync::Arc;

const OPERATION: &str = "optimizer step";

/// A backend that sends gradients to the servers on which variables are stored.
#[derive(Debug)]
pub(crate) struct Servers {
    /// The trained variables, in the optimizer's order; `None` for those in the memory of this process.
    variables: Vec<Option<OnServers>>,
    /// Whether several workers store tables together.
    in_lock_step: bool,
}

/// A variable that is stored on servers.
#[derive(Debug)]
struct OnServers {
    variable: Variable,
    remote: Arc<RemoteVariable>,
}

impl Backend for Servers {
    fn is_one_pass(&self, _optimizer: &Inner) -> bool {
        false
    }

    fn reduce_and_apply(&self, update: &Update<'_>, _pass: &Pass<'_>) -> Result<()> {
        Err(Error::invalid(update.operation, "servers get complete gradients, after the reduction"))
    }

    fn apply(
        &self,
        update: &Update<'_>,
        sync: &StepSync<'_>,
        gradients: &Arc<Vec<Option<ReplicaGradient>>>,
        change: Option<&Change<'_>>,
    ) -> Result<()> {
        // All replicas receive the result of the leader's previous call before it runs again.
        sync.run_on_each("its update on servers", |_| Ok(()))?;
        sync.run_on_leader(|threads| {
            let Some(change) = change else { return Ok(()) };
            let Some(session) = update.parameters().strategy.session() else { return Ok(()) };
            if session.lock_step().is_some() {
                return self.apply_in_lock_step(session, update, gradients, change, sync, threads);
            }
            // Later computations of the same run use the new values.
            let made = || {
                change.commit();
                session.record_step(change.counter());
            };
            session.push(OPERATION, self.requests(update, gradients)?, made)
        })
    }

    fn slot_share(&self, _: &Parameters, variable: usize) -> SlotShare {
        if self.is_on_servers(variable) { SlotShare::Elsewhere } else { SlotShare::All }
    }

    fn slot(
        &self,
        optimizer: &Inner,
        variable: usize,
        slot: usize,
        _at: &'static Location<'static>,
    ) -> Result<Tensor> {
        if !self.is_on_servers(variable) {
            return update::slot_here(optimizer, variable, slot);
        }
        if self.is_dynamic(variable) {
            return Err(Error::NotSupported {
                operation: "slot",
                strategy: "ParameterServerStrategy",
                what: "slots of a table of ids as one tensor",
                advice: "take them from Variable::dynamic_rows",
            });
        }
        self.set_rules(optimizer)?;
        Ok(self.slots(optimizer, variable)?[slot].to_candle(&Device::Cpu)?)
    }

    fn save(&self, optimizer: &Inner, prefix: &str, writer: &mut Writer) -> Result<()> {
        update::save_slots_here(optimizer, prefix, writer, |number| !self.is_on_servers(number))?;
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

    // INV-86
    fn is_incomplete(&self, _optimizer: &Inner) -> bool {
        self.in_lock_step && self.on_servers().any(|(_, of)| of.remote.is_incomplete())
    }

    fn rewind(&self, _optimizer: &Inner) -> Result<()> {
        if !self.in_lock_step {
            return Ok(());
        }
        let reason = "the workers store tables together, some of which may already be those of a later step";
        Err(Error::invalid("Training::recover", reason))
    }

    fn require_rule(&self, operation: &'static str, rule: &dyn Rule) -> Result<()> {
        rule_spec(operation, rule)?;
        // In lock step, variables that are not on servers support any rule. The others may still be frozen.
        if self.in_lock_step { Ok(()) } else { require_rows(operation, rule) }
    }

    fn require_transform(&self, operation: &'static str, when: When, transform: &Transform) -> Result<()> {
        let refused = |what, advice| {
            Err(Error::NotSupported { operation, strategy: "ParameterServerStrategy", what, advice })
        };
        if when == When::AfterReduce && transform.needs_all_gradients() && !self.in_lock_step {
            return refused(
                "clipping by the global norm, because no worker has the gradients of all",
                "clip the gradient of each variable, by Transform::clip_by_norm",
            );
        }
        if transform.closure().is_some() && self.in_lock_step && when == When::AfterReduce {
            return refused(
                "Transform::each after the reduction with tables that the workers store together",
                "pass it to before_reduce",
            );
        }
        if transform.closure().is_some() && (0..self.variables.len()).any(|number| self.is_dynamic(number)) {
            return refused(
                "Transform::each with a table of ids",
                "freeze it, and train it with a separate optimizer",
            );
        }
        if transform.reads_values() && self.on_servers().any(|(_, of)| of.remote.is_fetched_by_row()) {
            return refused(
                "weight decay of tables of which only rows are fetched",
                "freeze them, or use AdamW, whose rule decays on the server",
            );
        }
        Ok(())
    }
}

impl Servers {
    /// Creates the backend for an optimizer's variables, which are passed with their names.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: a variable is not on the servers of the strategy, for example because its model
    ///   has been dropped.
    pub(crate) fn new(strategy: &Strategy, variables: &[(String, Var)]) -> Result<Self> {
        let in_lock_step = strategy.session().is_some_and(|session| session.lock_step().is_some());
        let on_servers = |(name, var): &(String, Var)| {
            let reason =
                || format!("variable {name} is not on the servers of its strategy; keep its model alive");
            let variable = strategy.container(var.id());
            let found = variable.as_ref().and_then(|variable| {
                Some(OnServers { variable: variable.clone(), remote: variable.remote()?.clone() })
            });
            match (found, variable) {
                (None, Some(_)) if in_lock_step => Ok(None),
                (None, _) => Err(Error::invalid(OPERATION, reason())),
                (found, _) => Ok(found),
            }
        };
        Ok(Self { variables: variables.iter().map(on_servers).collect::<Result<_>>()?, in_lock_step })
    }

    /// Returns `true` if the variable is a dynamic embedding, whose rows are identified by ids.
    fn is_dynamic(&self, number: usize) -> bool {
        self.get(number).is_some_and(|of| of.remote.ids().is_some())
    }

    /// Returns `true` if the variable is stored on servers.
    fn is_on_servers(&self, number: usize) -> bool {
        self.get(number).is_some()
    }

    fn get(&self, number: usize) -> Option<&OnServers> {
        self.variables.get(number)?.as_ref()
    }

    /// Returns the variables on servers, with their indices.
    fn on_servers(&self) -> impl Iterator<Item = (usize, &OnServers)> {
        self.variables.iter().enumerate().filter_map(|(number, of)| Some((number, of.as_ref()?)))
    }

    /// Returns an error if the rule of a variable on servers cannot be applied there. The result is the same on all
    /// workers.
    fn require_rules(&self, update: &Update<'_>) -> Result<()> {
        let mut all = self.on_servers();
        all.try_for_each(|(number, _)| require_rows(update.operation, update.rules.of(number).0))
    }

    /// Returns the requests that make the servers apply the gradients.
    fn requests<'s>(
        &'s self,
        update: &Update<'_>,
        gradients: &[Option<ReplicaGradient>],
    ) -> Result<Vec<PushRequests<'s>>> {
        if let Some((_, of)) = self.on_servers().find(|(_, of)| !of.remote.is_ready()) {
            let reason = format!(
                "variable {} was used completely before its values were fetched, and the fetch failed; check the \
                 servers, and repeat the step",
                of.variable.name()
            );
            return Err(Error::invalid(OPERATION, reason));
        }
        let one = |(number, OnServers { remote, .. }, gradient): (usize, &'s OnServers, &ReplicaGradient)| {
            let ((rule, step), (_, var)) = (update.rules.of(number), &update.parameters().variables[number]);
            // In lock step, all agree on the number of the step, also after a checkpoint of an earlier one.
            let push = if self.in_lock_step { Push::at(step) } else { Push::at(step).counted() };
            let spec = rule_spec(OPERATION, rule)?;
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
        let found = self.on_servers();
        found.filter_map(|(number, of)| Some((number, of, gradients[number].as_ref()?))).map(one).collect()
    }
}

/// Returns an error if a rule needs complete variables, because a server has only some rows of a variable.
fn require_rows(operation: &'static str, rule: &dyn Rule) -> Result<()> {
    if rule.unit() != Unit::Variable {
        return Ok(());
    }
    Err(Error::NotSupported {
        operation,
        strategy: "ParameterServerStrategy",
        what: "rules that need complete variables, such as LAMB and Adafactor: a table has only a part of its \
               variable's rows",
        advice: "train tables by a rule of elements or rows, such as AdamW or RowAdagrad, with a separate optimizer",
    })
}

/// Returns a rule in serializable form, or an error if the rule cannot be sent to servers.
fn rule_spec(operation: &'static str, rule: &dyn Rule) -> Result<RuleSpec> {
    rule.spec().ok_or(Error::NotSupported {
        operation,
        strategy: "ParameterServerStrategy",
        what: "custom rules, because variables are updated on servers, which receive no code",
        advice: "use one of distribute's rules, and change gradients with Transform::each",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_parameter_server::ParameterServerStrategy;
    use distribute_ps_client::LocalCluster;
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
