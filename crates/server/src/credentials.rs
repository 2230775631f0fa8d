//! How the tasks of a job know each other.

use distribute_cluster::ClusterSpec;
use distribute_net::{Access, AccessError, Identity, Secret};

/// What a server and its callers need to let each other in.
#[derive(Clone, Debug, Default)]
pub(crate) struct Credentials {
    /// Without, the secret of the environment, if there is one.
    pub identity: Option<Identity>,
    pub allow_plain_text: bool,
}

impl Credentials {
    /// The access to the tasks of a cluster. All of them protect connections alike, since they know the same addresses.
    pub fn access(&self, cluster: &ClusterSpec) -> Result<Access, AccessError> {
        let identity = match &self.identity {
            Some(identity) => identity.clone(),
            None => Secret::from_env()?.map_or(Identity::None, Identity::Secret),
        };
        let addresses: Vec<_> = cluster.tasks().map(|(_, address)| address.clone()).collect();
        Access::new(&identity, &addresses, self.allow_plain_text)
    }
}
