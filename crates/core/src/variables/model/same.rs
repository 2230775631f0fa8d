//! Compares a model between workers.

use super::Variables;
use super::files::{absorb, hex};
use crate::strategy::{Settings, differences, digest, record};
use distribute_base::{Error, Result};
use distribute_cluster::{Fingerprint, Operation};
use distribute_tensor::Leaf;
use sha2::{Digest, Sha256};
use std::panic::Location;

const OPERATION: &str = "replicate";

impl Variables {
    /// Returns an error if the models of workers differ, because they would never become equal. The workers
    /// exchange a digest. If the digests differ, they exchange checksums, so that the error names the
    /// variables.
    pub(crate) fn require_same_on_workers(&self, at: &'static Location<'static>) -> Result<()> {
        let strategy = self.strategy();
        if !strategy.world().is_multi_worker() {
            return Ok(());
        }
        let mine = strategy.or_tell_workers(self.checksums())?;
        let call = || Fingerprint::new(Operation::CreateVariable, "the variables of a model", at);
        let records = strategy.among_workers(OPERATION, call, |mut calling| {
            let digests = calling.all_gather_bytes(record::encode(&digest(&mine)))?;
            if digests.windows(2).all(|two| two[0] == two[1]) {
                return Ok(Vec::new());
            }
            calling.all_gather_bytes(record::encode(&mine))
        })?;
        let all: Vec<Settings> = record::decode_all(OPERATION, &records.unwrap_or_default())?;
        match differences(&all) {
            None => Ok(()),
            Some(differences) => {
                let reason = format!(
                    "the workers have built different models: {differences}; build the same variables, with the same seed, on all \
                     workers"
                );
                Err(Error::invalid(OPERATION, reason))
            }
        }
    }

    /// Returns the seed, and each variable by name, with a checksum of its value.
    fn checksums(&self) -> Result<Settings> {
        let mut all = vec![("seed".to_owned(), self.seed().to_string())];
        for (name, kind) in self.kinds() {
            let value = kind.any()?.as_tensor().clone();
            let mut hasher = Sha256::new();
            absorb(&mut hasher, &name, &value)?;
            let (value, checksum) = (Leaf::Candle(value).describe(), hex(hasher));
            all.push((format!("variable {name}"), format!("{value} of SHA-256 {}", &checksum[..16])));
        }
        Ok(all)
    }
}
