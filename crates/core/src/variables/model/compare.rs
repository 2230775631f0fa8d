//! Comparison of a model's variables between workers.

use super::Variables;
use super::files::{hash_tensor, hex};
use crate::strategy::wire;
use distribute_base::{Error, ErrorKind, Result};
use distribute_cluster::{Fingerprint, Operation};
use distribute_decisions::internal::{Settings, differences, digest};
use distribute_tensor::Leaf;
use ring::digest::{Context, SHA256};
use std::panic::Location;

const OPERATION: &str = "replicate";

impl Variables {
    /// Returns an error if the workers' models differ. Training would never make them equal. The workers exchange a
    /// digest. If the digests differ, they exchange checksums to identify the variables.
    pub(crate) fn require_same_on_workers(&self, at: &'static Location<'static>) -> Result<()> {
        let strategy = self.strategy();
        if !strategy.world().is_multi_worker() {
            return Ok(());
        }
        let mine = strategy.abort_peers_on_err(self.checksums())?;
        let call = || Fingerprint::new(Operation::CreateVariable, "the variables of a model", at);
        let records = strategy.worker_call(OPERATION, call, |mut calling| {
            let digests = calling.all_gather_bytes(wire::encode(&digest(&mine)))?;
            if digests.windows(2).all(|two| two[0] == two[1]) {
                return Ok(Vec::new());
            }
            calling.all_gather_bytes(wire::encode(&mine))
        })?;
        let all: Vec<Settings> = wire::decode_all(OPERATION, &records.unwrap_or_default())?;
        match differences(&all) {
            None => Ok(()),
            Some(differences) => {
                let reason = format!(
                    "the workers have built different models: {differences}; build the same variables, with the same \
                     seed, on all \
                     workers"
                );
                Err(Error::failed(ErrorKind::Disagreement, OPERATION, reason))
            }
        }
    }

    /// Returns the seed and, for each variable, a checksum of its value or, if it is on servers, a description of its
    /// tables.
    fn checksums(&self) -> Result<Settings> {
        let mut all = vec![("seed".to_owned(), self.seed().to_string())];
        for (name, kind) in self.kinds() {
            if let Some(tables) = self.tables(&name)? {
                all.push((format!("variable {name}"), tables));
                continue;
            }
            let value = kind.any()?.as_tensor().clone();
            let mut hasher = Context::new(&SHA256);
            hash_tensor(&mut hasher, &name, &value)?;
            let (value, checksum) = (Leaf::Candle(value).describe(), hex(hasher));
            all.push((format!("variable {name}"), format!("{value} of SHA-256 {}", &checksum[..16])));
        }
        Ok(all)
    }

    /// Describes the tables of a variable on servers, because no worker has its values. Returns `None` for other
    /// variables.
    fn tables(&self, name: &str) -> Result<Option<String>> {
        let variable = self.variable(name)?;
        let Some(remote) = variable.remote() else { return Ok(None) };
        let tables: Vec<&str> = remote.tables().shards().iter().map(|shard| shard.table.as_str()).collect();
        let (dtype, dims) = (variable.dtype(), variable.dims());
        Ok(Some(format!("{dtype}{dims:?} in the tables {}", tables.join(", "))))
    }
}
