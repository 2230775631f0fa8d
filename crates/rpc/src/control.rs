//! The service by which the leading task of the cluster ends a server.

use crate::fault::{Fault, FaultKind};
use crate::own_task::may_stop_servers;
use crate::service::{Call, Reply, Service};
use crate::shutdown::{Shutdown, ShutdownReason};
use distribute_cluster::ClusterSpec;
use std::sync::{Arc, Weak};

/// The name of the service that ends a server.
pub(crate) const NAME: &str = "server";

/// The head of a call that ends the server.
pub(crate) const STOP: &[u8] = b"stop";

/// A service that ends its server.
pub(crate) struct Control {
    pub cluster: Arc<ClusterSpec>,
    pub shutdown: Weak<Shutdown>,
}

impl Service for Control {
    fn call(&self, call: Call, reply: Reply) {
        let Call { caller, message } = call;
        if message.head != STOP {
            return reply.fail("the only request to a server is to stop: are both of the same build?");
        }
        if !may_stop_servers(&self.cluster, &caller) {
            let text = format!(
                "{caller} may not stop this server: only the chief may or, without one, worker 0; without \
                 either, the first task"
            );
            return reply.fault(Fault::new(FaultKind::NotAllowed, text));
        }
        reply.answer("", "");
        if let Some(shutdown) = self.shutdown.upgrade() {
            shutdown.end(ShutdownReason::Chief(caller));
        }
    }
}
