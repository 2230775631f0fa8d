//! Which variables are updated on devices, and which gradients stay there until then.

use super::Copies;
use crate::Optimizer;
use crate::transform::Transform;
use candle_core::Var;
use distribute_base::DeviceName;
use distribute_cross_device::internal::uses_nccl;
use distribute_optim::Rule;

impl<R: Rule> Optimizer<R> {
    /// The variables that are updated on devices: those of which each replica has a copy on its own, where the rule can be told as a
    /// program, and nobody else needs gradients or slots on the host: neither servers nor other workers. Empty where there is none.
    pub(crate) fn on_devices(&self) -> Copies<'_> {
        let trained = &*self.trained;
        let host = trained.remote.is_some()
            || trained.shards.is_some()
            || trained.strategy.world().is_multi_worker()
            || !self.only_computes();
        if trained.device_copies.is_empty()
            || host
            || !trained.strategy.devices().into_iter().all(DeviceName::can_update)
        {
            return Vec::new();
        }
        let has_program = self.groups.have_programs(&self.rule);
        let copies = trained.device_copies.iter().zip(has_program);
        let all: Copies<'_> = copies.map(|(copies, has)| copies.as_ref().filter(|_| has)?.of_all()).collect();
        if all.iter().any(Option::is_some) { all } else { Vec::new() }
    }

    /// The copies whose gradients stay on the device of a local replica until they are applied; none where replicas have to meet on
    /// the host before. Those of several replicas stay where NCCL adds all of them up.
    pub(crate) fn staying<'a>(&self, all: &Copies<'a>, replica: usize) -> Vec<Option<&'a Var>> {
        let transforms = || self.before_reduce.iter().chain(&self.after_reduce);
        let whole = transforms().any(|transform| transform.closure().is_some());
        // A norm is over all gradients, wherever they are.
        let torn = transforms().any(Transform::takes_norms) && all.iter().any(Option::is_none);
        let strategy = &self.trained.strategy;
        let (world, extended) = (strategy.world(), strategy.extended());
        let by_nccl =
            || !world.is_multi_worker() && uses_nccl(extended.cross_device_ops(), extended.worker_devices());
        let meet = world.replicas() > 1 && !(by_nccl() && all.iter().all(Option::is_some));
        if meet || whole || torn {
            return Vec::new();
        }
        all.iter().map(|copies| copies.as_ref()?.get(replica).copied()).collect()
    }
}
